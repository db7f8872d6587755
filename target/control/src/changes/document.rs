//! The text of a configuration, and applying edits to it.
//!
//! Parts that an edit does not concern keep their text, including comments.

use nvmeof_rdma::Address;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, Value, value};

use super::{host_keys, keys};
use nvmeof_target_address as zone;
use nvmeof_target_api::{ANY, Edit, NamespaceAdd, Slot};
use nvmeof_target_config::DEFAULT_PORT;

/// A configuration that can be edited.
#[derive(Clone, Debug, Default)]
pub(super) struct Document {
    toml: DocumentMut,
}

/// An edit does not fit the document. Displays as `key: what`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {what}")]
pub struct EditError {
    pub(crate) key: &'static str,
    pub(crate) what: String,
}

/// Refuses an edit.
pub(super) fn refusal<T>(key: &'static str, what: impl Into<String>) -> Result<T, EditError> {
    let what = what.into();
    Err(EditError { key, what })
}

/// Keys of the document.
const SUBSYSTEM: &str = "subsystem";
const NAMESPACE: &str = "namespace";
const PORT: &str = "port";
const REFERRAL: &str = "referral";
const ANA_GROUP: &str = "ana_group";
const HOSTS: &str = "allowed_hosts";
const ANY_HOST: &str = "allow_any_host";
/// The tables with the keys of hosts.
const HOST: &str = "host";

impl Document {
    /// # Errors
    /// If `text` is not TOML.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let toml = text.parse::<DocumentMut>();
        let mut toml = toml.map_err(|error| error.to_string())?;
        expand_inline_tables(toml.as_table_mut());
        Ok(Self { toml })
    }

    pub(super) fn text(&self) -> String {
        self.toml.to_string()
    }

    /// Fills in what `edit` leaves out: the subsystem if there is only one, the NSID of a new
    /// namespace, which is none that an edit of `deferred` has, the address of a port that is
    /// given by its port ID, and which keys of a host are replaced or removed. Clears what is not
    /// saved.
    ///
    /// # Errors
    /// [`EditError`] if the value is ambiguous or there is none.
    pub(super) fn settle(&self, edit: &mut Edit, deferred: &[Edit]) -> Result<(), EditError> {
        if let Some(subsystem) = edit.subsystem_mut()
            && subsystem.is_none()
        {
            *subsystem = Some(self.only_subsystem()?);
        }
        match edit {
            Edit::NamespaceAdd(add) if add.nsid.is_none() => {
                add.nsid = Some(self.free_nsid(add, deferred)?);
            }
            Edit::PortAdd { address, .. } => *address = parsed(address)?.to_string(),
            Edit::PortRemove { address }
            | Edit::PortSet { address, .. }
            | Edit::AnaSet {
                address: Some(address),
                ..
            } => {
                *address = self.port_named(address)?.to_string();
            }
            _ => {
                if let Some(host) = edit.host_of_keys().map(str::to_owned) {
                    host_keys::settle(self.host(&host), edit)?;
                    self.record(edit);
                }
            }
        }
        Ok(())
    }

    /// Records in a change of the keys of a host what it replaces or removes here.
    pub(super) fn record(&self, edit: &mut Edit) {
        let present = edit.host_of_keys().and_then(|host| self.host(host));
        host_keys::record(present, edit);
    }

    /// The table with the keys of the host.
    pub(super) fn host(&self, nqn: &str) -> Option<&Table> {
        let mut all = tables(self.toml.as_table(), HOST);
        all.find(|table| is(table, "nqn", nqn))
    }

    fn only_subsystem(&self) -> Result<String, EditError> {
        let names: Vec<&str> = tables(self.toml.as_table(), SUBSYSTEM)
            .filter_map(|table| table.get("nqn")?.as_str())
            .collect();
        match names[..] {
            [only] => Ok(only.to_owned()),
            [] => refusal(SUBSYSTEM, "there is no subsystem; add one first"),
            _ => refusal(
                SUBSYSTEM,
                format!("there are several; name one of {}", names.join(", ")),
            ),
        }
    }

    /// The NSID of a new namespace. If the same namespace is `deferred`, its NSID.
    fn free_nsid(&self, new: &NamespaceAdd, deferred: &[Edit]) -> Result<u32, EditError> {
        let nqn = new.subsystem.as_deref().unwrap_or_default();
        let subsystem = self.subsystem(nqn)?;
        let used: Vec<i64> = tables(subsystem, NAMESPACE).filter_map(nsid_of).collect();
        let is_used = |nsid: u32| used.contains(&i64::from(nsid));
        let same = deferred.iter().find_map(|edit| match edit {
            Edit::NamespaceAdd(one) => {
                let numbered = NamespaceAdd {
                    nsid: one.nsid,
                    ..new.clone()
                };
                one.nsid.filter(|nsid| numbered == *one && !is_used(*nsid))
            }
            _ => None,
        });
        // Hosts identify a namespace by its NSID: they must not find other data there.
        let reserved = |nsid| {
            deferred
                .iter()
                .any(|one| one.slot() == Slot::Namespace(nqn, nsid))
        };
        let free = |nsid: &u32| !is_used(*nsid) && !reserved(*nsid);
        let found = same.or_else(|| (1_u32..).find(free));
        found.map_or_else(|| refusal("nsid", "there is no free NSID"), Ok)
    }

    /// The address of the port with the port ID or address `name`.
    fn port_named(&self, name: &str) -> Result<Address, EditError> {
        let Ok(number) = name.parse::<i64>() else {
            return parsed(name);
        };
        let ports = tables(self.toml.as_table(), PORT);
        let found = (1_i64..).zip(ports).find(|(position, port)| {
            let id = port.get("id").and_then(Item::as_integer);
            id.unwrap_or(*position) == number
        });
        match found.and_then(|(_, port)| address_of(port)) {
            Some(address) => Ok(address),
            None => {
                let what = format!("there is no port {number}; `ctl show` prints them in order");
                refusal(PORT, what)
            }
        }
    }

    fn subsystem(&self, nqn: &str) -> Result<&Table, EditError> {
        let mut all = tables(self.toml.as_table(), SUBSYSTEM);
        let found = all.find(|table| is(table, "nqn", nqn));
        found.map_or_else(|| no_subsystem(nqn), Ok)
    }

    /// The `path` of the namespace that `edit` concerns.
    ///
    /// # Errors
    /// [`EditError`] if there is no such namespace.
    pub(super) fn path_of(&self, edit: &Edit) -> Result<String, EditError> {
        let Slot::Namespace(nqn, nsid) = edit.slot() else {
            return refusal("nsid", "does not identify a namespace");
        };
        let mut all = tables(self.subsystem(nqn)?, NAMESPACE);
        let found = all.find(|table| nsid_of(table) == Some(nsid.into()));
        let path = found.and_then(|table| table.get("path")?.as_str());
        path.map_or_else(|| no_namespace(nsid), |path| Ok(path.to_owned()))
    }

    /// Applies the edit, or leaves the document unchanged.
    ///
    /// # Errors
    /// [`EditError`] if the object does not exist, or exists already.
    pub(super) fn make(&mut self, edit: &Edit) -> Result<(), EditError> {
        match edit {
            Edit::SubsystemAdd {
                nqn,
                serial,
                model,
                hosts,
            } => self.add_subsystem(nqn, serial.as_deref(), model.as_deref(), hosts),
            Edit::SubsystemRemove { nqn } => self.remove_subsystem(nqn),
            Edit::NamespaceAdd(add) => self.add_namespace(add),
            Edit::NamespaceRemove { subsystem, nsid } => {
                self.remove_namespace(subsystem.as_deref(), *nsid)
            }
            Edit::NamespaceEnable {
                subsystem,
                nsid,
                enabled,
            } => self.enable_namespace(subsystem.as_deref(), *nsid, *enabled),
            Edit::NamespaceSet {
                subsystem,
                nsid,
                key,
                value,
            } => {
                let namespace = self.namespace_mut(subsystem.as_deref(), *nsid)?;
                keys::set(namespace, keys::OF_NAMESPACES, key, value.as_deref())
            }
            Edit::SubsystemSet { nqn, key, value } => {
                let subsystem = self.subsystem_mut(Some(nqn))?;
                keys::set(subsystem, keys::OF_SUBSYSTEMS, key, value.as_deref())
            }
            Edit::PortSet {
                address,
                key,
                value,
            } => self.set_port(address, key, value.as_deref()),
            Edit::HostAllow { subsystem, host } => {
                allow(self.subsystem_mut(subsystem.as_deref())?, host)
            }
            Edit::HostDeny { subsystem, host } => {
                deny(self.subsystem_mut(subsystem.as_deref())?, host)
            }
            Edit::HostSetKey(_)
            | Edit::HostRotateKey { .. }
            | Edit::HostRemoveOldKey { .. }
            | Edit::HostRemoveKey { .. } => {
                host_keys::make(tables_mut(self.toml.as_table_mut(), HOST)?, edit)
            }
            Edit::PortAdd {
                address,
                provider,
                id,
            } => self.add_port(address, provider, *id),
            Edit::PortRemove { address } => self.remove_at(PORT, address),
            Edit::AnaSet {
                address,
                group,
                state,
            } => self.set_ana(address.as_deref(), *group, state),
            Edit::ReferralAdd {
                address,
                port_id,
                nqn,
            } => self.add_referral(address, *port_id, nqn.as_deref()),
            Edit::ReferralRemove { address } => self.remove_at(REFERRAL, address),
        }
    }

    fn remove_subsystem(&mut self, nqn: &str) -> Result<(), EditError> {
        let all = tables_mut(self.toml.as_table_mut(), SUBSYSTEM)?;
        let removed = remove(all, |table| is(table, "nqn", nqn));
        if removed { Ok(()) } else { no_subsystem(nqn) }
    }

    fn remove_namespace(&mut self, subsystem: Option<&str>, nsid: u32) -> Result<(), EditError> {
        let all = tables_mut(self.subsystem_mut(subsystem)?, NAMESPACE)?;
        let removed = remove(all, |table| nsid_of(table) == Some(nsid.into()));
        if removed { Ok(()) } else { no_namespace(nsid) }
    }

    fn enable_namespace(
        &mut self,
        subsystem: Option<&str>,
        nsid: u32,
        enabled: bool,
    ) -> Result<(), EditError> {
        let namespace = self.namespace_mut(subsystem, nsid)?;
        if enabled {
            namespace.remove("enabled");
        } else {
            namespace.insert("enabled", value(false));
        }
        Ok(())
    }

    fn set_port(&mut self, address: &str, key: &str, value: Option<&str>) -> Result<(), EditError> {
        let wanted = parsed(address)?;
        let mut all = tables_mut(self.toml.as_table_mut(), PORT)?.iter_mut();
        match all.find(|table| address_of(table) == Some(wanted)) {
            Some(port) => keys::set(port, keys::OF_PORTS, key, value),
            None => none_at(PORT, address),
        }
    }

    fn subsystem_mut(&mut self, nqn: Option<&str>) -> Result<&mut Table, EditError> {
        let nqn = nqn.unwrap_or_default();
        let mut all = tables_mut(self.toml.as_table_mut(), SUBSYSTEM)?.iter_mut();
        let found = all.find(|table| is(table, "nqn", nqn));
        found.map_or_else(|| no_subsystem(nqn), Ok)
    }

    fn namespace_mut(&mut self, nqn: Option<&str>, nsid: u32) -> Result<&mut Table, EditError> {
        let mut all = tables_mut(self.subsystem_mut(nqn)?, NAMESPACE)?.iter_mut();
        let found = all.find(|table| nsid_of(table) == Some(nsid.into()));
        found.map_or_else(|| no_namespace(nsid), Ok)
    }

    fn add_subsystem(
        &mut self,
        nqn: &str,
        serial: Option<&str>,
        model: Option<&str>,
        hosts: &[String],
    ) -> Result<(), EditError> {
        let all = tables_mut(self.toml.as_table_mut(), SUBSYSTEM)?;
        if all.iter().any(|table| is(table, "nqn", nqn)) {
            return refusal(
                "nqn",
                format!("there is a subsystem {nqn} already; remove it first"),
            );
        }
        let mut table = Table::new();
        table.insert("nqn", value(nqn));
        insert(&mut table, "serial", serial);
        insert(&mut table, "model", model);
        if matches!(hosts, [any] if any == ANY) {
            table.insert(ANY_HOST, value(true));
        } else {
            table.insert(HOSTS, value(hosts.iter().collect::<Array>()));
        }
        all.push(table);
        Ok(())
    }

    fn add_namespace(&mut self, add: &NamespaceAdd) -> Result<(), EditError> {
        let subsystem = self.subsystem_mut(add.subsystem.as_deref())?;
        let all = tables_mut(subsystem, NAMESPACE)?;
        let nsid = i64::from(add.nsid.unwrap_or_default());
        if all.iter().any(|table| nsid_of(table) == Some(nsid)) {
            let what = format!(
                "there is a namespace {nsid} already; remove it first, or omit nsid for the \
                 first free one"
            );
            return refusal("nsid", what);
        }
        let mut table = Table::new();
        table.insert("nsid", value(nsid));
        table.insert("path", value(&add.path));
        insert(&mut table, "block_size", add.block_size.map(i64::from));
        insert(&mut table, "uuid", add.uuid.as_deref());
        insert(&mut table, "nguid", add.nguid.as_deref());
        insert(&mut table, "eui64", add.eui64.as_deref());
        insert(&mut table, "readonly", add.readonly);
        insert(&mut table, "iopoll", add.iopoll);
        insert(&mut table, "ana_group", add.ana_group.map(i64::from));
        if !add.hosts.is_empty() {
            table.insert("hosts", value(add.hosts.iter().collect::<Array>()));
        }
        all.push(table);
        Ok(())
    }

    fn add_port(
        &mut self,
        address: &str,
        provider: &[String],
        id: Option<u16>,
    ) -> Result<(), EditError> {
        let mut table = address_table(address)?;
        let wanted = parsed(address)?;
        let all = tables_mut(self.toml.as_table_mut(), PORT)?;
        let exists = all.iter().any(|table| address_of(table) == Some(wanted));
        if exists && wanted.port() != Some(0) {
            return refusal(
                "traddr",
                format!("there is a port {address} already; remove it first"),
            );
        }
        match provider {
            [] => {}
            [one] => {
                table.insert("provider", value(one));
            }
            several => {
                table.insert("provider", value(several.iter().collect::<Array>()));
            }
        }
        insert(&mut table, "id", id.map(i64::from));
        all.push(table);
        Ok(())
    }

    fn add_referral(
        &mut self,
        address: &str,
        port_id: Option<u16>,
        nqn: Option<&str>,
    ) -> Result<(), EditError> {
        let mut table = address_table(address)?;
        let wanted = parsed(address)?;
        let all = tables_mut(self.toml.as_table_mut(), REFERRAL)?;
        if all.iter().any(|table| address_of(table) == Some(wanted)) {
            return refusal(
                "traddr",
                format!("there is a referral to {address} already; remove it first"),
            );
        }
        insert(&mut table, "port_id", port_id.map(i64::from));
        insert(&mut table, "nqn", nqn);
        all.push(table);
        Ok(())
    }

    /// Removes the table with `address` from the tables `key`.
    fn remove_at(&mut self, key: &'static str, address: &str) -> Result<(), EditError> {
        let wanted = parsed(address)?;
        let all = tables_mut(self.toml.as_table_mut(), key)?;
        if remove(all, |table| address_of(table) == Some(wanted)) {
            return Ok(());
        }
        none_at(key, address)
    }

    fn set_ana(&mut self, address: Option<&str>, group: u32, state: &str) -> Result<(), EditError> {
        let wanted = address.map(parsed).transpose()?;
        let ports = tables_mut(self.toml.as_table_mut(), PORT)?.iter_mut();
        let mut found = false;
        for port in ports {
            if wanted.is_some() && address_of(port) != wanted {
                continue;
            }
            found = true;
            let groups = tables_mut(port, ANA_GROUP)?;
            let id = |table: &Table| table.get("id").and_then(Item::as_integer);
            if let Some(existing) = groups
                .iter_mut()
                .find(|table| id(table) == Some(group.into()))
            {
                existing.insert("state", value(state));
                continue;
            }
            let mut table = Table::new();
            table.insert("id", value(i64::from(group)));
            table.insert("state", value(state));
            groups.push(table);
        }
        match address {
            Some(address) if !found => none_at(PORT, address),
            _ => Ok(()),
        }
    }
}

/// Allows a host to connect to a subsystem.
fn allow(subsystem: &mut Table, host: &str) -> Result<(), EditError> {
    if host == ANY {
        subsystem.remove(HOSTS);
        subsystem.insert(ANY_HOST, value(true));
        return Ok(());
    }
    if subsystem.get(ANY_HOST).and_then(Item::as_bool) == Some(true) {
        let what = "every host may connect already; to restrict access, deny \"any\" and allow \
                    hosts in one change";
        return refusal(ANY_HOST, what);
    }
    let hosts = subsystem
        .entry(HOSTS)
        .or_insert_with(|| value(Array::new()));
    let Some(hosts) = hosts.as_array_mut() else {
        return refusal(HOSTS, "is not a list");
    };
    if !hosts.iter().any(|one| one.as_str() == Some(host)) {
        hosts.push(host);
    }
    Ok(())
}

fn deny(subsystem: &mut Table, host: &str) -> Result<(), EditError> {
    if host == ANY {
        subsystem.remove(ANY_HOST);
        subsystem.insert(HOSTS, value(Array::new()));
        return Ok(());
    }
    if subsystem.get(ANY_HOST).and_then(Item::as_bool) == Some(true) {
        let what = "every host may connect; to restrict access, deny \"any\" and allow hosts in \
                    one change";
        return refusal(ANY_HOST, what);
    }
    let hosts = subsystem.get_mut(HOSTS).and_then(Item::as_array_mut);
    let at = hosts.and_then(|hosts| {
        let at = hosts.iter().position(|one| one.as_str() == Some(host))?;
        Some(hosts.remove(at))
    });
    match at {
        Some(_) => Ok(()),
        None => {
            let what =
                format!("{host} is not allowed anyway; `ctl status` shows the allowed hosts");
            refusal(HOSTS, what)
        }
    }
}

fn no_subsystem<T>(nqn: &str) -> Result<T, EditError> {
    let what = format!("there is no subsystem {nqn}; `ctl status` shows the subsystems");
    refusal(SUBSYSTEM, what)
}

fn no_namespace<T>(nsid: u32) -> Result<T, EditError> {
    let what = format!("there is no namespace {nsid}; `ctl status` shows the namespaces");
    refusal("nsid", what)
}

fn none_at<T>(key: &'static str, address: &str) -> Result<T, EditError> {
    refusal(
        key,
        format!("there is none at {address}; `ctl show` prints the addresses"),
    )
}

/// Converts inline lists of tables to tables with headers.
fn expand_inline_tables(parent: &mut Table) {
    for key in [SUBSYSTEM, PORT, REFERRAL, NAMESPACE, ANA_GROUP, HOST] {
        let Some(item) = parent.get_mut(key) else {
            continue;
        };
        if item.is_value() {
            *item = match std::mem::take(item).into_array_of_tables() {
                Ok(all) => Item::ArrayOfTables(all),
                Err(other) => other,
            };
        }
        if let Item::ArrayOfTables(all) = item {
            all.iter_mut().for_each(expand_inline_tables);
        }
    }
}

/// The tables named `key`.
fn tables<'a>(parent: &'a Table, key: &str) -> impl Iterator<Item = &'a Table> {
    let all = parent.get(key).and_then(Item::as_array_of_tables);
    all.into_iter().flat_map(ArrayOfTables::iter)
}

/// The tables named `key`, mutable; created if there are none.
fn tables_mut<'a>(
    parent: &'a mut Table,
    key: &'static str,
) -> Result<&'a mut ArrayOfTables, EditError> {
    let item = parent
        .entry(key)
        .or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    match item {
        Item::ArrayOfTables(all) => Ok(all),
        _ => refusal(key, "is not a list of tables"),
    }
}

/// Removes the first that is `wanted`; returns whether there was one.
pub(super) fn remove(all: &mut ArrayOfTables, wanted: impl Fn(&Table) -> bool) -> bool {
    let at = all.iter().position(wanted);
    if let Some(at) = at {
        all.remove(at);
    }
    at.is_some()
}

pub(super) fn is(table: &Table, key: &str, wanted: &str) -> bool {
    table.get(key).and_then(Item::as_str) == Some(wanted)
}

fn nsid_of(table: &Table) -> Option<i64> {
    table.get("nsid").and_then(Item::as_integer)
}

fn insert(table: &mut Table, key: &str, given: Option<impl Into<Value>>) {
    if let Some(given) = given {
        table.insert(key, value(given));
    }
}

fn parsed(address: &str) -> Result<Address, EditError> {
    zone::parse(address).or_else(|error| refusal("traddr", format!("{address:?}: {error}")))
}

/// A table with the keys of an address.
fn address_table(address: &str) -> Result<Table, EditError> {
    let mut table = Table::new();
    match parsed(address)? {
        Address::Ip(address) => {
            table.insert("traddr", value(zone::traddr(address)));
            table.insert("trsvcid", value(i64::from(address.port())));
        }
        unix @ Address::Unix(_) => {
            table.insert("traddr", value(unix.to_string()));
        }
    }
    Ok(table)
}

/// The address of a port or a referral.
fn address_of(table: &Table) -> Option<Address> {
    let traddr = table.get("traddr")?.as_str()?;
    let service = match table.get("trsvcid") {
        None => DEFAULT_PORT,
        Some(item) => u16::try_from(item.as_integer()?).ok()?,
    };
    zone::parse_traddr(traddr, service)
}
