//! A command as a transport delivers it.

/// The task attribute of a command (SAM-5 8.9). The transport orders commands; the device only
/// refuses `Aca`, as no command ever establishes an ACA condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attribute {
    /// No order is asked for. Untagged commands are simple ones.
    Simple,
    /// After all older commands, before all younger ones.
    Ordered,
    /// Before all commands that have not begun.
    HeadOfQueue,
    /// Only for a nexus with an ACA condition.
    Aca,
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// The logical unit number: the eight bytes of SAM-5 4.7, big-endian.
    pub lun: u64,
    /// The CDB. It may be longer than its operation code says, as transports pad it.
    pub cdb: &'a [u8],
    /// The task attribute.
    pub attribute: Attribute,
    /// Bytes that the host has room for. 0 if it announced no transfer in this direction.
    pub reads: u32,
    /// Bytes that the host is going to send. 0 if it announced no transfer in this direction.
    pub sends: u32,
}

/// The difference between what the host announced and what its command moves (RFC 7143 11.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Residual {
    /// There is none.
    #[default]
    None,
    /// So many bytes of the announced ones do not move.
    Under(u32),
    /// The command would move so many bytes more.
    Over(u32),
}

impl Residual {
    /// Compares the bytes that the host announced with those that the command moves.
    pub fn of(announced: u32, total: u64) -> Residual {
        let announced = u64::from(announced);
        let part = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        match total.cmp(&announced) {
            core::cmp::Ordering::Equal => Residual::None,
            core::cmp::Ordering::Less => Residual::Under(part(announced - total)),
            core::cmp::Ordering::Greater => Residual::Over(part(total - announced)),
        }
    }
}
