//! The set-up against answers that a good and several bad targets give.

use nvmeof_wire::fabrics::InvalidParameter;
use nvmeof_wire::identify::Sgls;
use nvmeof_wire::{Nqn, Status};
use zerocopy::IntoBytes;

use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;

fn names() -> Names {
    Names {
        hostid: [1; 16],
        hostnqn: Nqn::new("nqn.2026-11.org.example:host").unwrap(),
        subnqn: Nqn::new("nqn.2026-11.org.example:disk").unwrap(),
    }
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
}

impl Controller {
    fn good() -> Self {
        Self {
            connect: (Status::SUCCESS, 7),
            cap: Cap::new(128, 1000, Cap::CSS_NVM),
            csts: vec![0, 1],
            identify: identify(),
        }
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
            Step::Enable | Step::Events | Step::Done => ok(0),
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
            match setup.poll(now) {
                Next::Send(ask) => {
                    sent.push(ask.command.name());
                    assert!(matches!(setup.poll(now), Next::Pending));
                    let (status, result, data) = self.completion(setup.step);
                    let completion = CommandCompletion { status, result };
                    if let Err(error) = setup.handle_completion(now, completion, &data) {
                        return (sent, Err(error));
                    }
                }
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
    assert!(matches!(secret.error(), SetupError::Unsupported { .. }));
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
