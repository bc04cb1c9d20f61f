/* SPDX-License-Identifier: GPL-2.0-only */

/*
 * fio's access to a Gabion volume: an external engine that links libgabion.
 *
 *   fio --ioengine=external:/path/gabion.so --cluster=dir:gabion-data --volume=vol1 ...
 *
 * Each job is a separate client: it opens the cluster in its own thread or process (init). Before
 * that, another client looks up the volume's size (setup) and is closed again. Queued requests go
 * out when fio asks for events. Completions are taken in batches as large as available and handed
 * to fio as it asks for them, so the requests that fio starts in between form one batch again.
 *
 * This file includes fio's headers, which are under the GPL version 2; see README.md beside it.
 */

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fio.h"
#include "optgroup.h"

#include <gabion.h>

struct gabion_job {
	gabion_cluster *cluster;
	gabion_volume *volume;
	/* Room for the completions of one poll, and the range of those that fio has not seen. */
	gabion_completion *done;
	unsigned int capacity, first, end;
	/* The number of events that the last getevents returned. */
	unsigned int promised;
};

struct gabion_engine_options {
	void *pad; /* fio's own */
	char *cluster;
	char *volume;
};

static struct fio_option options[] = {
	{
		.name = "cluster",
		.lname = "Where the cluster is",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct gabion_engine_options, cluster),
		.help = "its MDMs as IP:PORT,IP:PORT, or dir:PATH of one that `gabion up` runs here",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "volume",
		.lname = "Name of the volume",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct gabion_engine_options, volume),
		.help = "its whole content may be overwritten",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{ .name = NULL },
};

/* Opens the cluster and the volume of the job. */
static int attach(struct thread_data *td, gabion_cluster **cluster, gabion_volume **volume)
{
	struct gabion_engine_options *o = td->eo;
	struct gabion_options how = GABION_OPTIONS_INIT;
	int r;

	if (gabion_abi() != GABION_ABI) {
		log_err("gabion: the engine was built for another libgabion: run build.sh again\n");
		return 1;
	}
	if (!o->volume || !o->cluster) {
		log_err("gabion: say cluster=IP:PORT or cluster=dir:PATH, and volume=NAME\n");
		return 1;
	}
	how.queue_depth = td->o.iodepth;
	r = gabion_cluster_open(o->cluster, &how, cluster);
	if (r < 0) {
		log_err("gabion: %s\n", gabion_last_error(NULL));
		return 1;
	}
	r = gabion_volume_open(*cluster, o->volume, volume);
	if (r < 0) {
		log_err("gabion: %s\n", gabion_last_error(*cluster));
		gabion_cluster_close(*cluster);
		return 1;
	}
	return 0;
}

/* Runs in fio's main process, before the jobs: there is one file, as large as the volume. */
static int setup(struct thread_data *td)
{
	gabion_cluster *cluster;
	gabion_volume *volume;
	struct fio_file *f;
	int64_t size;

	if (attach(td, &cluster, &volume))
		return 1;
	size = gabion_volume_size(volume);
	gabion_cluster_close(cluster);
	if (size < 0) {
		log_err("gabion: %s\n", gabion_strerror(size));
		return 1;
	}
	if (!td->files_index) {
		add_file(td, td->o.filename ? td->o.filename : "gabion", 0, 0);
		td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
		td->o.open_files++;
	}
	f = td->files[0];
	f->real_file_size = size;
	fio_file_set_size_known(f);
	return 0;
}

/* Runs in the job. */
static int init(struct thread_data *td)
{
	struct gabion_job *job = calloc(1, sizeof(*job));

	if (!job)
		return 1;
	job->capacity = td->o.iodepth;
	job->done = calloc(job->capacity, sizeof(*job->done));
	if (!job->done || attach(td, &job->cluster, &job->volume)) {
		free(job->done);
		free(job);
		return 1;
	}
	td->io_ops_data = job;
	return 0;
}

static void cleanup(struct thread_data *td)
{
	struct gabion_job *job = td->io_ops_data;

	if (!job)
		return;
	td->io_ops_data = NULL;
	gabion_cluster_close(job->cluster);
	free(job->done);
	free(job);
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u)
{
	struct gabion_job *job = td->io_ops_data;
	int r;

	fio_ro_check(td, io_u);
	switch (io_u->ddir) {
	case DDIR_READ:
		r = gabion_read(job->volume, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset, io_u);
		break;
	case DDIR_WRITE:
		r = gabion_write(job->volume, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset, 0, io_u);
		break;
	case DDIR_TRIM:
		r = gabion_discard(job->volume, io_u->xfer_buflen, io_u->offset, io_u);
		break;
	case DDIR_SYNC:
	case DDIR_DATASYNC:
		r = gabion_flush(job->volume, io_u);
		break;
	default:
		io_u->error = EINVAL;
		return FIO_Q_COMPLETED;
	}
	if (r == -EAGAIN)
		return FIO_Q_BUSY;
	if (r < 0) {
		log_err("gabion: %s\n", gabion_last_error(job->cluster));
		io_u->error = -r;
		io_u->resid = io_u->xfer_buflen;
		return FIO_Q_COMPLETED;
	}
	return FIO_Q_QUEUED;
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max,
		     const struct timespec *t)
{
	struct gabion_job *job = td->io_ops_data;
	int64_t timeout = t ? t->tv_sec * 1000000000LL + t->tv_nsec : -1;
	unsigned int there = job->end - job->first;
	int r;

	/* Too few are left: make room, and take as many as there are. */
	if (!there || there < min) {
		memmove(job->done, job->done + job->first, there * sizeof(*job->done));
		r = gabion_poll(job->cluster, job->done + there, job->capacity - there,
				min > there ? min - there : 0, timeout);
		if (r < 0) {
			log_err("gabion: %s\n", gabion_last_error(job->cluster));
			return r;
		}
		job->first = 0;
		job->end = there + r;
		there = job->end;
	}
	job->promised = there < max ? there : max;
	job->first += job->promised;
	return job->promised;
}

static struct io_u *event(struct thread_data *td, int n)
{
	struct gabion_job *job = td->io_ops_data;
	gabion_completion *c = &job->done[job->first - job->promised + n];
	struct io_u *io_u = c->user;

	io_u->error = 0;
	io_u->resid = 0;
	if (c->result < 0) {
		io_u->error = -c->result;
		io_u->resid = io_u->xfer_buflen;
		log_err("gabion: at %llu: %s\n", (unsigned long long)io_u->offset,
			gabion_strerror(c->result));
	}
	return io_u;
}

/* There is nothing to open: init has opened the volume. */
static int open_file(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int close_file(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int invalidate(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int get_file_size(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

struct ioengine_ops ioengine = {
	.name = "gabion",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_DISKLESSIO | FIO_NOEXTEND,
	.setup = setup,
	.init = init,
	.queue = queue,
	.getevents = getevents,
	.event = event,
	.cleanup = cleanup,
	.open_file = open_file,
	.close_file = close_file,
	.invalidate = invalidate,
	.get_file_size = get_file_size,
	.option_struct_size = sizeof(struct gabion_engine_options),
	.options = options,
};
