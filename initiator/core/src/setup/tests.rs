//! The set-up against answers that a good and several bad targets give.

use std::sync::Arc;

use nvmeof_dhchap::{
    ControllerAuth, HostKeys, Key, Policy, Received, Refusal as AuthRefusal, Secret, SystemRandom,
};
use nvmeof_wire::auth::{AuthCommand, Explanation, GroupId, HashId};
use nvmeof_wire::fabrics::InvalidParameter;
use nvmeof_wire::identify::Sgls;
use nvmeof_wire::opcode::Direction;
use nvmeof_wire::{Nqn, Status};
use zerocopy::IntoBytes;

use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;

fn names() -> Names {
    Names {
        hostid: [1; 16],
        hostnqn: Nqn::new("nqn.2026-11.org.example:host").unwrap(),
        subnqn: Nqn::new("nqn.2026-11.org.example:disk").unwrap(),
        keys: None,
    }
}

fn key(byte: u8) -> Arc<Key> {
    let secret = Secret::take(&mut [byte; 32]).unwrap();
    Arc::new(Key::of(secret, None).unwrap())
}

/// With keys of host and controller.
fn config_with(host: u8, controller: Option<u8>) -> SetupConfig {
    let mut config = config();
    let keys = HostKeys::new(key(host), controller.map(key));
    config.names.keys = Some(Arc::new(keys));
    config
}

fn config() -> SetupConfig {
    SetupConfig {
        names: names(),
        queue: QueueShape {
            qid: 0,
            size: 32,
            flow_control: true,
        },
        keep_alive: Duration::from_secs(5),
        io_queues: 4,
        in_capsule: 4096,
    }
}

/// CC.CSS: the NVM command set wherever there is a choice.
#[test]
fn command_set_is_supported_by_the_controller() {
    for (offered, selected) in [
        (Cap::CSS_NVM, Some(Cc::CSS_NVM)),
        (Cap::CSS_NVM | Cap::CSS_IOCS, Some(Cc::CSS_NVM)),
        (Cap::CSS_IOCS, Some(Cc::CSS_ALL)),
        (1 << 7, None),
    ] {
        let cc = configuration(Cap::new(128, 1000, offered), false);
        assert_eq!(cc.ok().map(Cc::css), selected, "{offered:#x}");
    }
}

fn identify() -> IdentifyController {
    let mut id = IdentifyController::zeroed();
    id.cntlid = 7.into();
    id.kas = 10.into();
    id.sgls = (Sgls::SUPPORTED | Sgls::KSDBDS | Sgls::OFFSET)
        .bits()
        .into();
    id.mdts = 5;
    id.ioccsz = ((64 + 8192) / 16).into();
    id.iorcsz = 1.into();
    id.oaes = Oaes::NSAN.bits().into();
    id
}

/// A controller: what it answers to each step.
struct Controller {
    connect: (Status, u64),
    cap: Cap,
    csts: Vec<u64>,
    identify: IdentifyController,
    auth: Option<ControllerAuth>,
}

impl Controller {
    fn good() -> Self {
        Self {
            connect: (Status::SUCCESS, 7),
            cap: Cap::new(128, 1000, Cap::CSS_NVM),
            csts: vec![0, 1],
            identify: identify(),
            auth: None,
        }
    }

    /// Requires authentication: it has these keys of host and controller.
    fn with_keys(host: u8, controller: Option<u8>) -> Self {
        let policy = Policy {
            first_is_old: false,
            unknown: Default::default(),
            keys: vec![key(host)],
            controller_key: controller.map(key),
            hashes: vec![HashId::SHA384],
            groups: vec![GroupId::FFDHE2048],
        };
        let Names {
            hostnqn, subnqn, ..
        } = names();
        let auth = ControllerAuth::new(hostnqn, subnqn, Arc::new(policy), MS(5000), MS(0));
        Self {
            connect: (Status::SUCCESS, ConnectResult::new(7, true).to_result()),
            auth: Some(auth),
            ..Self::good()
        }
    }

    fn authenticate(&mut self, ask: &Ask) -> (Status, u64, Vec<u8>) {
        let auth = self.auth.as_mut().unwrap();
        let command = AuthCommand::parse(&ask.command.sqe());
        assert!(command.is_authentication());
        assert_eq!(command.len.get(), ask.command.len());
        let mut data = vec![0; ask.command.len().try_into().unwrap()];
        if ask.command.direction() == Direction::ToController {
            if let Ok(Some(work)) = auth.send(MS(0), &ask.payload) {
                let _ = auth.finish(MS(0), work.run(&mut SystemRandom));
            }
        } else {
            assert!(matches!(
                auth.receive(MS(0), &mut data),
                Received::Message(_)
            ));
        }
        (Status::SUCCESS, 0, data)
    }

    fn completion(&mut self, step: Step) -> (Status, u64, Vec<u8>) {
        let ok = |result| (Status::SUCCESS, result, Vec::new());
        match step {
            Step::Connect => (self.connect.0, self.connect.1, Vec::new()),
            Step::Cap => ok(self.cap.0),
            Step::Version => ok(Vs::V2_0.0.into()),
            Step::Ready { .. } => {
                let last = self.csts.len() == 1;
                ok(if last {
                    self.csts[0]
                } else {
                    self.csts.remove(0)
                })
            }
            Step::Identify => (Status::SUCCESS, 0, self.identify.as_bytes().to_vec()),
            Step::Queues => ok(0x0001_0001),
            Step::Enable | Step::Authenticate | Step::Events | Step::Done => ok(0),
        }
    }

    /// Runs a set-up; returns the names of the commands that were sent.
    fn run(
        mut self,
        config: SetupConfig,
    ) -> (Vec<&'static str>, Result<ControllerInfo, SetupError>) {
        let mut setup = Setup::new(config);
        let (mut sent, mut now) = (Vec::new(), MS(0));
        loop {
            let next = match setup.poll(now) {
                Ok(next) => next,
                Err(error) => return (sent, Err(error)),
            };
            match next {
                Next::Send(ask) => {
                    sent.push(ask.command.name());
                    assert!(matches!(setup.poll(now), Ok(Next::Pending)));
                    let (status, result, data) = match setup.step {
                        Step::Authenticate => self.authenticate(&ask),
                        step => self.completion(step),
                    };
                    let completion = CommandCompletion { status, result };
                    if let Err(error) = setup.handle_completion(now, completion, &data) {
                        return (sent, Err(error));
                    }
                }
                Next::Run(work) => setup.handle_result(work.run(&mut SystemRandom)),
                Next::Wait(until) => now = until,
                Next::Done => return (sent, Ok(setup.into_info().unwrap())),
                Next::Pending => unreachable!("nothing was sent"),
            }
        }
    }

    fn error(self) -> SetupError {
        self.run(config()).1.unwrap_err()
    }
}

#[test]
fn controller_is_set_up_in_order() {
    let (sent, info) = Controller::good().run(config());
    assert_eq!(
        sent,
        [
            "Connect",
            "Property Get",
            "Property Get",
            "Property Set",
            "Property Get",
            "Property Get",
            "Identify Controller",
            "Set Features",
            "Set Features",
        ]
    );
    let info = info.unwrap();
    assert_eq!(
        (info.cntlid, info.io_queues, info.max_queue_size),
        (7, 2, 128)
    );
    assert_eq!(info.cc, Cc::ENABLE);
    assert_eq!(info.limits.max_transfer, 128 << 10);
    assert_eq!(info.limits.in_capsule, 4096);
}

#[test]
fn discovery_controller_needs_no_queues() {
    let mut config = config();
    config.names.subnqn = Nqn::discovery();
    config.io_queues = 0;
    let mut controller = Controller::good();
    controller.cap = Cap::new(32, 500, 0);
    controller.identify.ioccsz = 0.into();
    controller.identify.kas = 0.into();
    controller.identify.oaes = 0.into();
    let (sent, info) = controller.run(config);
    assert_eq!(sent.last(), Some(&"Identify Controller"));
    assert_eq!(info.unwrap().io_queues, 0);
}

#[test]
fn in_capsule_data_needs_offsets_and_room() {
    let mut controller = Controller::good();
    controller.identify.sgls = (Sgls::SUPPORTED | Sgls::KSDBDS).bits().into();
    assert_eq!(controller.run(config()).1.unwrap().limits.in_capsule, 0);
    let mut controller = Controller::good();
    controller.identify.ioccsz = 4.into();
    controller.identify.mdts = 0;
    controller.identify.maxcmd = 16.into();
    let info = controller.run(config()).1.unwrap();
    assert_eq!(info.limits.in_capsule, 0);
    assert_eq!(info.limits.max_transfer, MAX_TRANSFER);
    assert_eq!(info.max_queue_size, 17);
}

#[test]
fn refusals_have_cause_and_remedy() {
    let invalid = |at: InvalidParameter| (Status::CONNECT_INVALID_PARAMETERS, at.to_result());
    for (connect, cause, remedy) in [
        (
            invalid(InvalidParameter::InData(256)),
            "no subsystem `nqn.2026-11.org.example:disk`",
            "discovery log",
        ),
        (
            (Status::CONNECT_INVALID_HOST.with_dnr().with_more(), 0),
            "host `nqn.2026-11.org.example:host` is not allowed",
            "`allowed_hosts`",
        ),
        (
            invalid(InvalidParameter::InCommand(44)),
            "queue size 32",
            "another size",
        ),
        (
            (Status::CONNECT_CONTROLLER_BUSY, 0),
            "Connect Controller Busy",
            "retry later",
        ),
        (
            invalid(InvalidParameter::InData(512)),
            "host NQN",
            "a valid name",
        ),
    ] {
        let controller = Controller {
            connect,
            ..Controller::good()
        };
        let error = controller.error();
        assert!(error.to_string().contains(cause), "{error}");
        let message = error.remedy().unwrap();
        assert!(message.contains(remedy), "{message}");
    }
}

#[test]
fn unsupported_controllers_are_refused() {
    let mut other = Controller::good();
    other.identify.cntlid = 8.into();
    assert!(matches!(other.error(), SetupError::InvalidResponse(_)));

    let mut no_keep_alive = Controller::good();
    no_keep_alive.identify.kas = 0.into();
    assert!(matches!(
        no_keep_alive.error(),
        SetupError::Unsupported { .. }
    ));

    let mut unkeyed = Controller::good();
    unkeyed.identify.sgls = 1.into();
    assert!(matches!(unkeyed.error(), SetupError::Unsupported { .. }));

    let mut tiny = Controller::good();
    tiny.identify.ioccsz = 3.into();
    assert!(matches!(tiny.error(), SetupError::InvalidResponse(_)));

    let mut other_commands = Controller::good();
    other_commands.cap = Cap::new(128, 1000, 0x80);
    assert!(matches!(
        other_commands.error(),
        SetupError::Unsupported { .. }
    ));

    let mut secret = Controller::good();
    secret.connect.1 = 7 | 1 << 17;
    assert!(matches!(secret.error(), SetupError::Keys { .. }));
}

#[test]
fn controller_that_fails_or_is_not_ready_in_time_is_refused() {
    let fatal = Controller {
        csts: vec![0, 0b10],
        ..Controller::good()
    };
    assert!(matches!(fatal.error(), SetupError::Fatal));
    let slow = Controller {
        csts: vec![0],
        ..Controller::good()
    };
    let (sent, result) = slow.run(config());
    assert!(matches!(result, Err(SetupError::TimedOut { after, .. }) if after == MS(1000)));
    assert!(sent.len() > 90, "polled all the while: {}", sent.len());
}

#[test]
fn authentication_precedes_the_first_property() {
    for controller_key in [None, Some(2)] {
        let controller = Controller::with_keys(1, controller_key);
        let (sent, info) = controller.run(config_with(1, controller_key));
        assert_eq!(info.unwrap().cntlid, 7);
        let [send, receive] = ["Authentication Send", "Authentication Receive"];
        assert_eq!(sent[..5], ["Connect", send, receive, send, receive]);
        let last = if controller_key.is_some() {
            send
        } else {
            "Property Get"
        };
        assert_eq!(sent[5], last);
    }
}

#[test]
fn failed_authentication_has_cause_and_remedy() {
    let (_, wrong_key) = Controller::with_keys(1, None).run(config_with(2, None));
    let wrong_key = wrong_key.unwrap_err();
    let SetupError::Authentication(refusal) = &wrong_key else {
        panic!("{wrong_key}");
    };
    assert_eq!(**refusal, AuthRefusal::ByController(Explanation::FAILED));
    assert!(wrong_key.remedy().unwrap().contains("compare the key"));

    let (_, impostor) = Controller::with_keys(1, Some(3)).run(config_with(1, Some(2)));
    let impostor = impostor.unwrap_err();
    assert!(
        impostor.to_string().contains("did not prove its key"),
        "{impostor}"
    );
    assert_eq!(impostor.settings(), [Setting::Keys]);
}

#[test]
fn missing_keys_are_reported_before_anything_is_sent() {
    let (sent, no_key) = Controller::with_keys(1, None).run(config());
    assert_eq!(sent, ["Connect"]);
    assert!(no_key.unwrap_err().to_string().contains("has no key"));
    // The controller has to prove its key, and does not offer to.
    let (sent, unauthenticated) = Controller::good().run(config_with(1, Some(2)));
    assert_eq!(sent, ["Connect"]);
    let error = unauthenticated.unwrap_err().to_string();
    assert!(error.contains("cannot prove"), "{error}");
    // A key of the host alone is not required.
    assert!(Controller::good().run(config_with(1, None)).1.is_ok());
    let mut secure = Controller::good();
    secure.connect.1 = 7 | 1 << 18;
    let (_, error) = secure.run(config_with(1, None));
    assert!(error.unwrap_err().to_string().contains("secure channel"));
}

#[test]
fn queue_that_is_not_authenticated_is_refused_if_the_controller_has_a_key() {
    let after = |names: &Names, qid, requires| {
        let queue = QueueShape {
            qid,
            size: 8,
            flow_control: true,
        };
        Authentication::after_connect(names, queue, ConnectResult::new(7, requires))
    };
    let (both, host) = (config_with(1, Some(2)).names, config_with(1, None).names);
    for qid in [0, 1] {
        assert!(matches!(
            after(&both, qid, false),
            Err(SetupError::Keys { .. })
        ));
        assert!(matches!(after(&both, qid, true), Ok(Some(_))));
        // A key of the host alone is not required.
        assert!(matches!(after(&host, qid, false), Ok(None)));
    }
}

/// A host gets its controller with the last message.
#[test]
fn refusal_after_the_proof_is_that_of_connect() {
    let names = config_with(1, None).names;
    let queue = QueueShape {
        qid: 3,
        size: 8,
        flow_control: true,
    };
    let refused_with = |auth: &mut Authentication, status, result| {
        let AuthenticationStep::Send(_) = auth.poll().unwrap() else {
            panic!("nothing to send");
        };
        let completion = CommandCompletion { status, result };
        auth.handle_completion(completion, &[]).unwrap_err()
    };
    let first = || {
        let connected = ConnectResult::new(7, true);
        let auth = Authentication::after_connect(&names, queue, connected);
        auth.unwrap().unwrap()
    };
    let busy = refused_with(&mut first(), Status::CONNECT_CONTROLLER_BUSY, 0);
    assert!(busy.remedy().unwrap().contains("limit of controllers"));
    let invalid = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
    let at = InvalidParameter::InCommand(42).to_result();
    let in_use = refused_with(&mut first(), invalid, at);
    assert!(
        in_use.to_string().contains("queue identifier 3"),
        "{in_use}"
    );
    assert_eq!(in_use.settings(), [Setting::IoQueues]);
    assert!(matches!(&in_use, SetupError::Refused(refusal) if refusal.status.dnr()));
    // Other statuses, and later transactions, are of the message.
    let failed = refused_with(&mut first(), Status::INTERNAL_ERROR, 0);
    assert!(matches!(failed, SetupError::Command(_)));
    let mut again = Authentication::again(&names, 3, 1).unwrap();
    let failed = refused_with(&mut again, Status::CONNECT_CONTROLLER_BUSY, 0);
    assert!(matches!(failed, SetupError::Command(_)));
}
