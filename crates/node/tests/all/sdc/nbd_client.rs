//! An NBD client for the tests.

use super::cluster::Cluster;
use base::{Limits, LinkId};
use node::sdc::SdcFramer;
use target::nbd::proto::*;

/// One NBD client.
pub(crate) struct Client {
    pub link: LinkId,
    framer: SdcFramer,
}

impl Client {
    pub(crate) fn connect(c: &mut Cluster, limits: &Limits) -> Client {
        let link = c.accept();
        let mut client =
            Client { link, framer: SdcFramer::new(node::sdc::NBD, &wire::DIALECT, limits) };
        assert_eq!(client.take(c).len(), 18, "the greeting");
        client.send(c, &(NBD_FLAG_C_FIXED_NEWSTYLE | NBD_FLAG_C_NO_ZEROES).to_be_bytes());
        client
    }

    pub(crate) fn attached(c: &mut Cluster, limits: &Limits) -> Client {
        let mut client = Client::connect(c, limits);
        client.go(c, "data");
        let answer = client.take(c);
        assert_eq!(answer[answer.len() - 8..][..4], NBD_REP_ACK.to_be_bytes());
        client
    }

    pub(crate) fn send(&mut self, c: &mut Cluster, bytes: &[u8]) {
        c.nbd(self.link, &mut self.framer, bytes);
    }

    pub(crate) fn option(&mut self, c: &mut Cluster, option: u32, data: &[u8]) {
        let mut bytes = IHAVEOPT.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.send(c, &bytes);
    }

    pub(crate) fn go(&mut self, c: &mut Cluster, name: &str) {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        data.extend(0u16.to_be_bytes());
        self.option(c, NBD_OPT_GO, &data);
    }

    pub(crate) fn request(
        &mut self,
        c: &mut Cluster,
        command: u16,
        cookie: u64,
        at: u64,
        len: u32,
        body: &[u8],
    ) {
        let mut bytes = NBD_REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend(0u16.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(at.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(body);
        self.send(c, &bytes);
    }

    /// Returns the bytes that it has received since the last call.
    pub(crate) fn take(&mut self, c: &mut Cluster) -> Vec<u8> {
        c.received.remove(&self.link).unwrap_or_default()
    }

    /// Takes one simple reply: its error, and the data after it.
    pub(crate) fn reply(&mut self, c: &mut Cluster, cookie: u64) -> (u32, Vec<u8>) {
        let bytes = self.take(c);
        assert_eq!(bytes[..4], NBD_SIMPLE_REPLY_MAGIC.to_be_bytes(), "{} bytes", bytes.len());
        assert_eq!(bytes[8..16], cookie.to_be_bytes());
        (be32(&bytes, 4), bytes[16..].to_vec())
    }
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}
