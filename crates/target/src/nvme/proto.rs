//! The constants of NVMe under the names of the specifications; each group names its section there.
//! Everything on the wire is little-endian. No logic here, except reading integers.

/// Bytes of the common header of a PDU (transport 3.3.1).
pub const COMMON: usize = 8;
/// Bytes of a digest of a head or of data (transport 3.3.1.1).
pub const DIGEST: usize = 4;
/// Bytes of a command capsule's header (transport 3.3.2.6).
pub const CAPSULE: usize = 72;
/// Bytes of the header of all other PDUs, except those that set up a connection.
pub const SHORT: usize = 24;
/// Bytes of the PDUs that set up a connection (transport 3.3.2.2).
pub const SETUP: usize = 128;
/// Most bytes of the header that a request to terminate quotes (transport 3.3.2.4).
pub const QUOTED: usize = 128;
/// Most bytes of data in a command capsule of an admin queue, and of one without a queue
/// (transport 3.3.2.6).
pub const ADMIN_CAPSULE: u32 = 8192;

// Transport 3.3.1: types of PDUs
pub(crate) const ICREQ: u8 = 0x00;
pub(crate) const ICRESP: u8 = 0x01;
pub(crate) const H2C_TERM: u8 = 0x02;
pub(crate) const C2H_TERM: u8 = 0x03;
pub(crate) const CAPSULE_CMD: u8 = 0x04;
pub(crate) const CAPSULE_RESP: u8 = 0x05;
pub(crate) const H2C_DATA: u8 = 0x06;
pub(crate) const C2H_DATA: u8 = 0x07;
pub(crate) const R2T: u8 = 0x09;

// Transport 3.3.1.1: flags
pub(crate) const HDGSTF: u8 = 1 << 0;
pub(crate) const DDGSTF: u8 = 1 << 1;
pub(crate) const LAST: u8 = 1 << 2;
pub(crate) const SUCCESS: u8 = 1 << 3;

// Transport 3.3.2.4: fatal errors
pub(crate) const FES_FIELD: u16 = 1;
pub(crate) const FES_SEQUENCE: u16 = 2;
pub(crate) const FES_DIGEST: u16 = 3;
pub(crate) const FES_RANGE: u16 = 4;
pub(crate) const FES_LIMIT: u16 = 5;
pub(crate) const FES_UNSUPPORTED: u16 = 6;

// Base 4.4, fabrics 2.3.1: types of SGL descriptors
/// Data in the capsule, at an offset.
pub(crate) const SGL_IN_CAPSULE: u8 = 0x01;
/// Data that the transport moves.
pub(crate) const SGL_TRANSPORT: u8 = 0x5a;

// Base 4.2: flags of a command
pub(crate) const FUSE: u8 = 0x03;
pub(crate) const FUSE_FIRST: u8 = 0x01;
pub(crate) const FUSE_SECOND: u8 = 0x02;
pub(crate) const PSDT: u8 = 0xc0;
pub(crate) const PSDT_SGL: u8 = 0x40;

// Base 5: opcodes of the admin command set
pub(crate) const GET_LOG_PAGE: u8 = 0x02;
pub(crate) const IDENTIFY: u8 = 0x06;
pub(crate) const ABORT: u8 = 0x08;
pub(crate) const SET_FEATURES: u8 = 0x09;
pub(crate) const GET_FEATURES: u8 = 0x0a;
pub(crate) const ASYNC_EVENT: u8 = 0x0c;
pub(crate) const KEEP_ALIVE: u8 = 0x18;

// Base 6: opcodes of the NVM command set
pub(crate) const FLUSH: u8 = 0x00;
pub(crate) const WRITE: u8 = 0x01;
pub(crate) const READ: u8 = 0x02;
pub(crate) const COMPARE: u8 = 0x05;
pub(crate) const WRITE_ZEROES: u8 = 0x08;
pub(crate) const DATASET: u8 = 0x09;
pub(crate) const RESERVATION_REGISTER: u8 = 0x0d;
pub(crate) const RESERVATION_REPORT: u8 = 0x0e;
pub(crate) const RESERVATION_ACQUIRE: u8 = 0x11;
pub(crate) const RESERVATION_RELEASE: u8 = 0x15;

// Fabrics 3: the opcode of its commands, and their types
pub(crate) const FABRICS: u8 = 0x7f;
pub(crate) const PROPERTY_SET: u8 = 0x00;
pub(crate) const CONNECT: u8 = 0x01;
pub(crate) const PROPERTY_GET: u8 = 0x04;
pub(crate) const AUTH_SEND: u8 = 0x05;
pub(crate) const AUTH_RECEIVE: u8 = 0x06;
pub(crate) const DISCONNECT: u8 = 0x08;

// Base 3.1: offsets of properties
pub(crate) const CAP: u32 = 0x00;
pub(crate) const VS: u32 = 0x08;
pub(crate) const CC: u32 = 0x14;
pub(crate) const CSTS: u32 = 0x1c;

/// The version of the base (3.1.2).
pub(crate) const VERSION: u32 = 0x0001_0400;

// Base 3.1.5, 3.1.6: bits of the configuration and of the status of a controller
pub(crate) const CC_EN: u32 = 1 << 0;
pub(crate) const CC_SHN: u32 = 3 << 14;
pub(crate) const CSTS_RDY: u32 = 1 << 0;
pub(crate) const CSTS_CFS: u32 = 1 << 1;
pub(crate) const CSTS_SHST: u32 = 3 << 2;
/// Shutdown is under way.
pub(crate) const SHST_GOING_ON: u32 = 1 << 2;
/// Shutdown is complete.
pub(crate) const SHST_COMPLETE: u32 = 2 << 2;

// Base 5.15.1: what Identify returns
pub(crate) const CNS_NAMESPACE: u8 = 0x00;
pub(crate) const CNS_CONTROLLER: u8 = 0x01;
pub(crate) const CNS_ACTIVE: u8 = 0x02;
pub(crate) const CNS_DESCRIPTORS: u8 = 0x03;
pub(crate) const CNS_SET_NAMESPACE: u8 = 0x05;
pub(crate) const CNS_SET_CONTROLLER: u8 = 0x06;
/// Bytes of what Identify returns.
pub(crate) const IDENTIFIED: usize = 4096;

// Base 5.21.1: features
pub(crate) const FEATURE_ARBITRATION: u8 = 0x01;
pub(crate) const FEATURE_POWER: u8 = 0x02;
pub(crate) const FEATURE_TEMPERATURE: u8 = 0x04;
pub(crate) const FEATURE_ERROR_RECOVERY: u8 = 0x05;
pub(crate) const FEATURE_QUEUES: u8 = 0x07;
pub(crate) const FEATURE_ATOMICITY: u8 = 0x0a;
pub(crate) const FEATURE_EVENTS: u8 = 0x0b;
pub(crate) const FEATURE_KEEP_ALIVE: u8 = 0x0f;
pub(crate) const FEATURE_BEHAVIOR: u8 = 0x16;
pub(crate) const FEATURE_HOST_ID: u8 = 0x81;
pub(crate) const FEATURE_NOTICES: u8 = 0x82;
pub(crate) const FEATURE_PERSISTENCE: u8 = 0x83;

// Base 5.14.1, fabrics 5: log pages
pub(crate) const LOG_ERRORS: u8 = 0x01;
pub(crate) const LOG_SMART: u8 = 0x02;
pub(crate) const LOG_FIRMWARE: u8 = 0x03;
pub(crate) const LOG_CHANGED: u8 = 0x04;
pub(crate) const LOG_EFFECTS: u8 = 0x05;
pub(crate) const LOG_ANA: u8 = 0x0c;
pub(crate) const LOG_DISCOVERY: u8 = 0x70;
pub(crate) const LOG_RESERVATIONS: u8 = 0x80;

/// The namespace id that means all namespaces (base 6.1).
pub(crate) const ALL: u32 = 0xffff_ffff;
/// The largest namespace id that a controller has.
pub(crate) const NAMESPACES: u32 = 0x10_0000;
/// The most namespaces that a host is told of.
pub(crate) const ACTIVE: u32 = 1024;
/// Bytes of a logical block.
pub(crate) const BLOCK: u32 = base::SECTOR;

/// The name by which hosts ask for the discovery controller (fabrics 1.5.1).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// The longest name in bytes (base 7.9).
pub const NQN_MAX: usize = 223;

/// Returns the two bytes at `at`, which the caller knows to exist.
#[inline]
pub(crate) fn le16(from: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*from[at..].first_chunk().expect("two bytes"))
}

/// Returns the four bytes at `at`, which the caller knows to exist.
#[inline]
pub(crate) fn le32(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*from[at..].first_chunk().expect("four bytes"))
}

/// Returns the eight bytes at `at`, which the caller knows to exist.
#[inline]
pub(crate) fn le64(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*from[at..].first_chunk().expect("eight bytes"))
}
