//! Limits in Identify: the maximum is accepted, and one more is refused.

use nvmeof_wire::admin::Cns;
use nvmeof_wire::identify::{IdentifyController, IdentifyControllerNvm, IdentifyNamespace, Oncs};
use nvmeof_wire::nvm::{Copy, CopyRange, Io};
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::{Sgl, Sqe, Status};
use zerocopy::{FromBytes, IntoBytes};

use super::fused::half;
use crate::testing::{Host, Outcome, namespace, port, subsystem};
use crate::{Action, Limits, Model, NamespaceSpec, SubsystemSpec, Target};

/// A host with one namespace that is longer than any command.
struct Scene {
    admin: Host,
    host: Host,
    block_size: u32,
}

impl Scene {
    fn new(block_size: u32, limits: Limits) -> Self {
        let spec = SubsystemSpec {
            namespaces: vec![NamespaceSpec {
                blocks: 1 << 20,
                block_size,
                ..namespace(1)
            }],
            ..subsystem()
        };
        let model = Model::build(limits, &[port()], &[spec]).unwrap();
        let (admin, host) = Host::ready(&Target::new(model));
        Self {
            admin,
            host,
            block_size,
        }
    }

    fn identify<T: FromBytes>(&mut self, cns: Cns) -> T {
        let nsid = u32::from(cns == Cns::NAMESPACE);
        T::read_from_bytes(&self.admin.identify(cns, nsid).data).unwrap()
    }

    fn command(opcode: Opcode, blocks: u32) -> Sqe {
        Io::new(1, 0, blocks).to_sqe(opcode)
    }

    fn len(&self, blocks: u32) -> usize {
        usize::try_from(blocks * self.block_size).unwrap()
    }

    fn copy(&mut self, ranges: &[CopyRange]) -> Status {
        let copy = Copy {
            nsid: 1,
            slba: 1 << 19,
            ranges: u16::try_from(ranges.len()).unwrap(),
            format: 0,
            protected: false,
            fua: false,
        };
        self.host.write(copy.to_sqe(), ranges.as_bytes()).status()
    }
}

/// MDTS, of commands that move data.
#[test]
fn longest_transfer_is_mdts() {
    for (block_size, max_transfer) in [(512, 8192), (4096, 8192), (512, 1 << 20), (4096, 1 << 20)] {
        let limits = Limits {
            max_transfer,
            ..Limits::default()
        };
        let mut scene = Scene::new(block_size, limits);
        let id: IdentifyController = scene.identify(Cns::CONTROLLER);
        let most = (4096 << id.mdts) / block_size;
        assert_eq!(most * block_size, max_transfer);
        for (blocks, status) in [(most, Status::SUCCESS), (most + 1, Status::INVALID_FIELD)] {
            let len = scene.len(blocks);
            let read = scene.host.read(Scene::command(io::READ, blocks), len);
            assert_eq!(read.status(), status, "{blocks}");
            for opcode in [io::WRITE, io::COMPARE] {
                let sqe = Scene::command(opcode, blocks);
                let completion = scene.host.write(sqe, &vec![0; len]);
                assert_eq!(completion.status(), status, "{blocks}");
            }
        }
    }
}

/// VSL and WZSL recommend, where NVMVFYS and NVMWZSV are set.
#[test]
fn commands_longer_than_vsl_and_wzsl_are_executed() {
    let mut scene = Scene::new(4096, Limits::default());
    let id: IdentifyController = scene.identify(Cns::CONTROLLER);
    assert!(id.oncs().contains(Oncs::NVMVFYS | Oncs::NVMWZSV));
    let nvm: IdentifyControllerNvm = scene.identify(Cns::CSI_CONTROLLER);
    for (opcode, limit) in [(io::VERIFY, nvm.vsl), (io::WRITE_ZEROES, nvm.wzsl)] {
        for blocks in [1 << limit, (1 << limit) + 1] {
            let completion = scene.host.plain(Scene::command(opcode, blocks));
            assert_eq!(
                completion.status(),
                Status::SUCCESS,
                "{opcode:?} of {blocks}"
            );
        }
    }
}

/// MSRC (0's based), MSSRL and MCL. NVM 1.0, 3.2.2.
#[test]
fn longest_copy_is_that_of_the_namespace() {
    let exceeded = Status::COMMAND_SIZE_LIMIT_EXCEEDED;
    for block_size in [512, 4096] {
        let mut scene = Scene::new(block_size, Limits::default());
        let id: IdentifyNamespace = scene.identify(Cns::NAMESPACE);
        let one = CopyRange::new(0, 1);
        let count = usize::from(id.msrc) + 1;
        assert_eq!(scene.copy(&vec![one; count]), Status::SUCCESS);
        assert_eq!(scene.copy(&vec![one; count + 1]), exceeded);
        let longest = u32::from(id.mssrl.get());
        assert_eq!(scene.copy(&[CopyRange::new(7, longest)]), Status::SUCCESS);
        assert_eq!(scene.copy(&[CopyRange::new(7, longest + 1)]), exceeded);
        let mut all = Vec::new();
        let mut left = id.mcl.get();
        while left > 0 {
            let blocks = left.min(longest);
            all.push(CopyRange::new(7, blocks));
            left -= blocks;
        }
        assert_eq!(scene.copy(&all), Status::SUCCESS, "{} ranges", all.len());
        all.push(one);
        assert_eq!(scene.copy(&all), exceeded);
    }
}

/// NACWU (0's based).
#[test]
fn longest_fused_operation_is_nacwu() {
    for block_size in [512, 4096] {
        let mut scene = Scene::new(block_size, Limits::default());
        let id: IdentifyNamespace = scene.identify(Cns::NAMESPACE);
        let most = u32::from(id.nacwu.get()) + 1;
        for blocks in [most + 1, most] {
            let sqe = Scene::command(io::COMPARE, blocks);
            let (_, action) = half(&mut scene.host, 1, sqe, blocks * block_size);
            match action {
                Action::Respond(response) => {
                    let status = response.cqe.status().kind();
                    assert_eq!(status, Status::ATOMIC_WRITE_UNIT_EXCEEDED);
                    assert!(blocks > most);
                }
                action => {
                    assert!(matches!(action, Action::Fuse), "{action:?}");
                    assert_eq!(blocks, most);
                }
            }
        }
    }
}

/// IOCCSZ, in units of 16 bytes with the command.
#[test]
fn in_capsule_data_are_limited_by_ioccsz() {
    for in_capsule in [0, 512, 4096] {
        let limits = Limits {
            in_capsule,
            ..Limits::default()
        };
        let mut scene = Scene::new(512, limits);
        let id: IdentifyController = scene.identify(Cns::CONTROLLER);
        let most = id.ioccsz.get() * 16 - 64;
        assert_eq!(most, in_capsule);
        for blocks in [most / 512, most / 512 + 1]
            .into_iter()
            .filter(|it| *it > 0)
        {
            let mut sqe = Scene::command(io::WRITE, blocks);
            let (offset, len) = (0, blocks * 512);
            sqe.dptr = Sgl::InCapsule { offset, len }.to_descriptor();
            let outcome = scene.host.run(sqe, &[], &vec![0; scene.len(blocks)]);
            let Outcome::Answered(completion) = outcome else {
                panic!("{outcome:?}");
            };
            let expected = match len > most {
                true => Status::DATA_SGL_LENGTH_INVALID,
                false => Status::SUCCESS,
            };
            assert_eq!(completion.status(), expected, "{len} of {most}");
        }
    }
}
