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

// The ABI that this header describes. It changes when programs that were built with an older
// header would stop working. The name of the library's file changes with it (`libgabion.so.ABI`).
#define GABION_ABI 0

// The version of the library that this header belongs to: major, minor, patch, two digits each.
#define GABION_VERSION 100

// For `gabion_write` and `gabion_write_zeroes`: the data is durable when the request completes.
// All writes of Gabion are, so the flag changes nothing. It exists for callers that pass it on.
#define GABION_FUA 1

// For `gabion_write_zeroes`: keep the range allocated, so that later writes find space.
#define GABION_NO_HOLE 2

// Choose io_uring where the kernel allows it, else epoll.
#define GABION_BACKEND_AUTO 0

// Use io_uring, or fail.
#define GABION_BACKEND_URING 1

// Use epoll.
#define GABION_BACKEND_EPOLL 2

// An open cluster. The thread that opened it is a client of the cluster.
typedef struct gabion_cluster gabion_cluster;

// An open volume.
typedef struct gabion_volume gabion_volume;

// Options for `gabion_cluster_open`. Initialise them with `GABION_OPTIONS_INIT`; a field that is 0
// has its default.
typedef struct gabion_options {
    // `sizeof(struct gabion_options)`. Newer libraries may have more fields.
    size_t struct_size;
    // The client's name in `gabion status`, 1 to 64 bytes. Two clients of a cluster must not have
    // the same name: the newer one ends the older. Default: `HOST-lib-N`, with the first N that is
    // free on this host.
    const char *name;
    // Time limit for opening a cluster or a volume, in milliseconds. Default: 10 seconds.
    uint32_t timeout_ms;
    // Most requests that may be outstanding, at most 16384. Default: 1024.
    uint32_t queue_depth;
    // One of `GABION_BACKEND_*`.
    uint32_t backend;
    // Must be 0.
    uint32_t flags;
} gabion_options;

// A completed request.
typedef struct gabion_completion {
    // The `user` argument of the request.
    void *user;
    // Bytes read, written, zeroed or discarded (0 for a flush), or a negative errno for
    // `gabion_strerror`.
    int64_t result;
} gabion_completion;

// Properties of a volume.
typedef struct gabion_volume_info {
    // Size in bytes. A volume may grow while it is open.
    uint64_t size;
    // Offsets and lengths are multiples of this many bytes.
    uint32_t sector;
    // Requests are most efficient in multiples of this many bytes.
    uint32_t block;
    // Longest read or write, in bytes. Discards and zeroing: up to 4 GiB less one sector.
    uint32_t max_transfer;
    // Always 0.
    uint32_t reserved;
} gabion_volume_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the version of the library: the value of `GABION_VERSION` when it was built.
uint32_t gabion_version(void);

// Returns the library's ABI. A program that loads the library itself compares it with
// `GABION_ABI`; for other programs the loader has compared it already.
uint32_t gabion_abi(void);

// Opens a cluster: connects to it as a client, and waits until an MDM has accepted the client.
// `mdm` has the addresses of its MDMs: `IP:PORT`, separated by commas; or `dir:PATH` with the
// directory of a cluster that `gabion up` runs on this machine. `options` may be `NULL`.
//
// Returns 0, or a negative errno with a message in `gabion_last_error(NULL)`: `-EINVAL` (an
// argument), `-ETIMEDOUT` (no MDM accepted the client), or an errno of the system.
//
// `mdm` is a string, `options` is `NULL` or has `struct_size` bytes, `cluster` may be written.
int gabion_cluster_open(const char *mdm,
                        const struct gabion_options *options,
                        struct gabion_cluster **cluster);

// Closes a cluster and frees its volumes. Outstanding requests never complete; writes among them
// may or may not be executed. Returns 0, or a negative errno. `NULL` is allowed.
//
// `cluster` is `NULL` or an open cluster. It and its volumes are not used afterwards.
int gabion_cluster_close(struct gabion_cluster *cluster);

// Sends the requests that were started since the last call, and takes up to `max` completions. It
// waits until there are `min` of them, for `timeout_ns` at most (0: does not wait; below 0: no
// limit), and does not wait if nothing is outstanding. Returns the number of completions, or a
// negative errno.
//
// Nothing makes progress outside this function: call it often, or when `gabion_fd` is readable. If
// it returns `max`, there may be more completions, and requests started since the last call may
// not have been sent yet.
//
// `cluster` is an open cluster, `completions` has room for `max`; the memory of all started
// requests is as promised.
int gabion_poll(struct gabion_cluster *cluster,
                struct gabion_completion *completions,
                uint32_t max,
                uint32_t min,
                int64_t timeout_ns);

// Returns a descriptor for `poll`, `epoll` and similar calls, or a negative errno. It becomes
// readable when `gabion_poll` has something to do, but only if `gabion_arm` was the last call and
// returned 1. It belongs to the cluster: do not read it, do not close it.
//
// `cluster` is an open cluster.
int gabion_fd(struct gabion_cluster *cluster);

// Sends the requests that were started. Call it before you wait for `gabion_fd`. Returns 1: wait
// now, and call `gabion_poll` when the descriptor is readable. Returns 0: there is something to do
// already, call `gabion_poll` first. Or returns a negative errno.
//
// `cluster` is an open cluster; the memory of all requests is as promised.
int gabion_arm(struct gabion_cluster *cluster);

// Returns a message for a negative errno of this library. The text stays valid forever.
const char *gabion_strerror(int64_t result);

// Returns a message that says why the last failed call on this cluster failed, and what to do.
// With `NULL`: the same for the last failed call of this thread that had no cluster, such as
// `gabion_cluster_open`. Never returns `NULL`. The text is valid until the next call on the
// cluster (or of the thread).
//
// `cluster` is `NULL` or an open cluster.
const char *gabion_last_error(const struct gabion_cluster *cluster);

// Opens the volume of this name. Returns 0, or a negative errno with a message in
// `gabion_last_error`: `-ENOENT` (there is no such volume), `-ETIMEDOUT`. As with any call,
// completions of other requests are not lost.
//
// `cluster` is an open cluster, `name` a string, `volume` may be written.
int gabion_volume_open(struct gabion_cluster *cluster,
                       const char *name,
                       struct gabion_volume **volume);

// Closes a volume. Its outstanding requests continue and complete. Returns 0, or a negative errno.
// `NULL` is allowed.
//
// `volume` is `NULL` or an open volume, which is not used afterwards.
int gabion_volume_close(struct gabion_volume *volume);

// Returns the present properties of a volume in `info`. `info_size` is
// `sizeof(struct gabion_volume_info)`. Returns 0, or a negative errno.
//
// `volume` is an open volume, `info` has `info_size` bytes.
int gabion_volume_stat(struct gabion_volume *volume,
                       struct gabion_volume_info *info,
                       size_t info_size);

// Returns the present size of a volume in bytes, or a negative errno.
//
// `volume` is an open volume.
int64_t gabion_volume_size(struct gabion_volume *volume);

// Starts a read of `len` bytes at `offset` into `data`. Returns 0 if the request was started; a
// completion with `user` follows. Or returns a negative errno, and no completion follows:
// `-EAGAIN` (the queue is full), `-EINVAL`, `-ESTALE` (the volume was unmapped from this client
// after it was opened, and is mapped to it again: open it again).
//
// `volume` is an open volume. `data` has `len` bytes, unused elsewhere until the completion.
int gabion_read(struct gabion_volume *volume, void *data, size_t len, uint64_t offset, void *user);

// Starts a write of `len` bytes from `data` to `offset`. `flags`: 0 or `GABION_FUA`. Returns the
// same as `gabion_read`. After the completion, the data is on all copies.
//
// `volume` is an open volume. `data` has `len` bytes, which nothing changes until the completion.
int gabion_write(struct gabion_volume *volume,
                 const void *data,
                 size_t len,
                 uint64_t offset,
                 uint32_t flags,
                 void *user);

// Starts a flush. When it completes, every write that completed before is durable. Returns the
// same as `gabion_read`.
//
// `volume` is an open volume.
int gabion_flush(struct gabion_volume *volume, void *user);

// Starts to discard a range. From the completion on it reads as zeros, and its space is freed.
// Returns the same as `gabion_read`.
//
// `volume` is an open volume.
int gabion_discard(struct gabion_volume *volume, size_t len, uint64_t offset, void *user);

// Starts to zero a range without sending data. `flags`: 0, `GABION_FUA`, `GABION_NO_HOLE`. Returns
// the same as `gabion_read`.
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
