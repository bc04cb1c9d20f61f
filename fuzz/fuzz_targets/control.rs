//! Decoders of all control messages: arbitrary bytes decode to a message or an error, and a message
//! that is encoded again decodes to the same message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use wire::control::*;

fn check<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = M::decode(bytes) {
        assert_eq!(M::decode(&message.encode_to_vec()[..]).as_ref(), Ok(&message));
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let checks = [
        check::<Hello>,
        check::<Welcome>,
        check::<Refusal>,
        check::<Register>,
        check::<RegisterSdc>,
        check::<Registered>,
        check::<Heartbeat>,
        check::<MapPage>,
        check::<Proposal>,
        check::<AdminRequest>,
        check::<AdminReply>,
    ];
    checks[usize::from(input.0) % checks.len()](input.1);
    if let Some(command) = mdm::Command::from_bytes(input.1) {
        assert_eq!(mdm::Command::from_bytes(&command.to_bytes()), Some(command));
    }
});
