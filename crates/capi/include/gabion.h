/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * libgabion: volumes of a Gabion cluster for programs. See docs/reference/libgabion.md.
 *
 * Generated from crates/capi/src by `cargo xtask fix`: change it there.
 */

#ifndef GABION_H
#define GABION_H

#include <stddef.h>
#include <stdint.h>

/* All options at their defaults: struct gabion_options o = GABION_OPTIONS_INIT; */
#define GABION_OPTIONS_INIT { sizeof(struct gabion_options), NULL, 0, 0, 0, 0 }

// The ABI that this header describes. It changes when a program that was built with an older header
// would not work any more; then the library's file is called otherwise, too (`libgabion.so.ABI`).
#define GABION_ABI 0

// The version of the library that this header belongs to: major, minor, patch, two digits each.
#define GABION_VERSION 100

// For `gabion_write` and `gabion_write_zeroes`: the data is durable when the request completes.
// Gabion's writes always are, so this changes nothing; it is there to be passed on.
#define GABION_FUA 1

// For `gabion_write_zeroes`: keep the range allocated, so that a later write can't run out of space.
#define GABION_NO_HOLE 2

// Choose io_uring where the kernel allows it, else epoll.
#define GABION_BACKEND_AUTO 0

// Use io_uring, or fail.
#define GABION_BACKEND_URING 1

// Use epoll.
#define GABION_BACKEND_EPOLL 2

// A cluster that this thread is a client of.
typedef struct gabion_cluster gabion_cluster;

// A volume that is open.
typedef struct gabion_volume gabion_volume;

// How `gabion_cluster_open` does its work. Set it up with `GABION_OPTIONS_INIT`; a field that is 0
// means the default.
typedef struct gabion_options {
    // `sizeof(struct gabion_options)`. A newer library may know more fields.
    size_t struct_size;
    // The client's name in `gabion status`, 1 to 64 bytes. Two clients of a cluster must not have the
    // same one: the newer one ends the older. Default: `HOST-lib-N`, with the first N that is free
    // on this host.
    const char *name;
    // How long opening a cluster or a volume may take. Default: 10 seconds.
    uint32_t timeout_ms;
    // How many requests may be outstanding, at most 16384. Default: 1024.
    uint32_t queue_depth;
    // One of `GABION_BACKEND_*`.
    uint32_t backend;
    // Must be 0.
    uint32_t flags;
} gabion_options;

// A request that has ended.
typedef struct gabion_completion {
    // What the request was started with.
    void *user;
    // Bytes read, written, zeroed or discarded (0 for a flush), or a negative errno:
    // `gabion_strerror` has words for it.
    int64_t result;
} gabion_completion;

// What a volume is like.
typedef struct gabion_volume_info {
    // Bytes. A volume may grow while it is open.
    uint64_t size;
    // Offsets and lengths are multiples of this many bytes.
    uint32_t sector;
    // Requests are cheapest in multiples of this many bytes.
    uint32_t block;
    // The longest read or write, in bytes. Discards and zeroes may have up to 4 GiB less a sector.
    uint32_t max_transfer;
    // 0.
    uint32_t reserved;
} gabion_volume_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The library's version, as `GABION_VERSION` was when it was built.
uint32_t gabion_version(void);

// The library's ABI. A program that loads the library itself compares it with `GABION_ABI`; for the
// others, the loader has compared it.
uint32_t gabion_abi(void);

// Becomes a client of a cluster, and waits until it is one. `mdm` says where its MDMs listen:
// `IP:PORT`, several with commas between; or `dir:PATH` with the directory of a cluster that
// `gabion up` runs on this machine. `options` may be `NULL`.
//
// 0, or a negative errno with words in `gabion_last_error(NULL)`: `-EINVAL` (an argument),
// `-ETIMEDOUT` (no MDM took us), or what the system said.
//
// `mdm` is a string, `options` is `NULL` or has `struct_size` bytes, `cluster` may be written.
int gabion_cluster_open(const char *mdm,
                        const struct gabion_options *options,
                        struct gabion_cluster **cluster);

// Ends the client, and frees its volumes, too. Requests that are outstanding never complete: writes
// among them may be executed or not. 0, or a negative errno; `NULL` is fine.
//
// `cluster` is `NULL` or an open cluster, which is not used afterwards; nor are its volumes.
int gabion_cluster_close(struct gabion_cluster *cluster);

// Sends what was started since the last call, and takes up to `max` completions. It waits until
// there are `min` of them, for `timeout_ns` at most (0: not at all; below 0: for ever), and not at
// all when nothing is outstanding. Returns how many there are, or a negative errno.
//
// Nothing moves outside of this function: call it often, or when `gabion_fd` says so. When it returns
// `max`, there may be more, and what was started since may not be on its way yet.
//
// `cluster` is an open cluster, `completions` has room for `max`; the memory of all requests that
// were started is as it was promised.
int gabion_poll(struct gabion_cluster *cluster,
                struct gabion_completion *completions,
                uint32_t max,
                uint32_t min,
                int64_t timeout_ns);

// A descriptor for `poll`, `epoll` and their like: it becomes readable when `gabion_poll` has
// something to do. It counts only when `gabion_arm` was the last call and has returned 1. It belongs
// to the cluster: don't read it, don't close it. Or a negative errno.
//
// `cluster` is an open cluster.
int gabion_fd(struct gabion_cluster *cluster);

// Before waiting for `gabion_fd`: sends what was started. 1: wait now, and call `gabion_poll` when
// the descriptor is readable. 0: there is something to do already, call `gabion_poll` first. Or a
// negative errno.
//
// `cluster` is an open cluster; the memory of all requests is as it was promised.
int gabion_arm(struct gabion_cluster *cluster);

// What a negative errno from this library means, in words. The text lives as long as the program.
const char *gabion_strerror(int64_t result);

// Why the last call that failed on this cluster failed, in words that say what to do. With `NULL`:
// why the last call of this thread failed that had no cluster to keep it, as `gabion_cluster_open`.
// Never `NULL`. The text is valid until the next call on the cluster (of the thread).
//
// `cluster` is `NULL` or an open cluster.
const char *gabion_last_error(const struct gabion_cluster *cluster);

// Opens the volume of this name. 0, or a negative errno with words in `gabion_last_error`: `-ENOENT`
// (there is none), `-ETIMEDOUT`. As with any call, completions of other requests are not lost.
//
// `cluster` is an open cluster, `name` a string, `volume` may be written.
int gabion_volume_open(struct gabion_cluster *cluster,
                       const char *name,
                       struct gabion_volume **volume);

// Closes a volume. Requests on it that are outstanding go on, and complete. 0, or a negative errno;
// `NULL` is fine.
//
// `volume` is `NULL` or an open volume, which is not used afterwards.
int gabion_volume_close(struct gabion_volume *volume);

// What the volume is like at present. `info_size` is `sizeof(struct gabion_volume_info)`. 0, or a
// negative errno.
//
// `volume` is an open volume, `info` has `info_size` bytes.
int gabion_volume_stat(struct gabion_volume *volume,
                       struct gabion_volume_info *info,
                       size_t info_size);

// The volume's size in bytes at present, or a negative errno.
//
// `volume` is an open volume.
int64_t gabion_volume_size(struct gabion_volume *volume);

// Starts a read of `len` bytes at `offset` into `data`. 0, and a completion with `user` comes later;
// or a negative errno, and none comes: `-EAGAIN` (the queue is full), `-EINVAL`.
//
// `volume` is an open volume. `data` has `len` bytes, which nobody else uses until the completion.
int gabion_read(struct gabion_volume *volume,
                void *data,
                size_t len,
                uint64_t offset,
                void *user);

// Starts a write of `len` bytes from `data` to `offset`. `flags`: 0 or `GABION_FUA`. Results as of
// `gabion_read`. What has completed is on all copies.
//
// `volume` is an open volume. `data` has `len` bytes, which nobody changes until the completion.
int gabion_write(struct gabion_volume *volume,
                 const void *data,
                 size_t len,
                 uint64_t offset,
                 uint32_t flags,
                 void *user);

// Starts a flush: when it completes, every write that has completed before is durable. Results as of
// `gabion_read`.
//
// `volume` is an open volume.
int gabion_flush(struct gabion_volume *volume,
                 void *user);

// Starts to discard a range: it reads as zeros from the completion on, and its space is given back.
// Results as of `gabion_read`.
//
// `volume` is an open volume.
int gabion_discard(struct gabion_volume *volume, size_t len, uint64_t offset, void *user);

// Starts to write zeros, without sending them. `flags`: 0, `GABION_FUA`, `GABION_NO_HOLE`. Results as
// of `gabion_read`.
//
// `volume` is an open volume.
int gabion_write_zeroes(struct gabion_volume *volume,
                        size_t len,
                        uint64_t offset,
                        uint32_t flags,
                        void *user);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GABION_H */
