//! A device that fails on demand: a file system of one file is mounted over it. Needs root.

use anyhow::{Context, Result};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyWrite,
    Request, WriteFlags,
};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// The operations that can fail, with EIO.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Operation {
    /// Reads fail.
    Read,
    /// Writes fail.
    Write,
    /// Flushes fail.
    Flush,
}

/// Covers the file as long as this value exists. Afterwards the original file is back, with all
/// data written meanwhile.
#[derive(Debug)]
pub struct Failing {
    path: PathBuf,
    failing: Arc<[AtomicBool; 3]>,
    session: Option<BackgroundSession>,
}

impl Failing {
    /// Mounts over a file that no process has open.
    pub fn over(path: &Path) -> Result<Failing> {
        let file = File::options().read(true).write(true).open(path)?;
        let failing = Arc::<[AtomicBool; 3]>::default();
        let disk = Disk { file, failing: Arc::clone(&failing) };
        let session = fuser::spawn_mount(disk, path, &Config::default())
            .with_context(|| format!("can't mount a file system over {}", path.display()))?;
        Ok(Failing { path: path.to_owned(), failing, session: Some(session) })
    }

    /// Lets this operation fail from now on, or work again.
    pub fn set(&self, operation: Operation, fails: bool) {
        self.failing[operation as usize].store(fails, Ordering::SeqCst);
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        // Processes that have it open keep it.
        let _ = unmount(&self.path, UnmountFlags::DETACH);
        drop(self.session.take());
    }
}

struct Disk {
    file: File,
    failing: Arc<[AtomicBool; 3]>,
}

impl Disk {
    fn tried<T>(
        &self,
        operation: Operation,
        work: impl FnOnce() -> std::io::Result<T>,
    ) -> Result<T, Errno> {
        match self.failing[operation as usize].load(Ordering::SeqCst) {
            true => Err(Errno::EIO),
            false => work().map_err(Errno::from),
        }
    }

    fn attributes(&self) -> std::io::Result<FileAttr> {
        let (is, then) = (self.file.metadata()?, SystemTime::UNIX_EPOCH);
        Ok(FileAttr {
            ino: INodeNo::ROOT,
            size: is.len(),
            blocks: is.blocks(),
            atime: then,
            mtime: is.modified()?,
            ctime: then,
            crtime: then,
            kind: FileType::RegularFile,
            perm: 0o644,
            nlink: 1,
            uid: is.uid(),
            gid: is.gid(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn tell(&self, reply: ReplyAttr) {
        match self.attributes() {
            Ok(attributes) => reply.attr(&Duration::ZERO, &attributes),
            Err(why) => reply.error(Errno::from(why)),
        }
    }
}

impl Filesystem for Disk {
    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.tell(reply);
    }

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<fuser::TimeOrNow>,
        _mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match size.map_or(Ok(()), |size| self.file.set_len(size)) {
            Ok(()) => self.tell(reply),
            Err(why) => reply.error(Errno::from(why)),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let past_the_cache = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), past_the_cache);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut data = vec![0; size as usize];
        match self.tried(Operation::Read, || self.file.read_at(&mut data, offset)) {
            Ok(count) => reply.data(&data[..count]),
            Err(why) => reply.error(why),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.tried(Operation::Write, || self.file.write_all_at(data, offset)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(why) => reply.error(why),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        match self.tried(Operation::Flush, || self.file.sync_data()) {
            Ok(()) => reply.ok(),
            Err(why) => reply.error(why),
        }
    }
}
