/*
 * Copies a file to the start of a volume, or the start of a volume to a file:
 *
 *   copy dir:gabion-data vol1 < FILE
 *   copy 127.0.0.1:7001 vol1 BYTES > FILE
 *
 * Both directions keep up to 16 requests of 1 MiB outstanding. They complete in any order. The
 * pieces are used in rotation, so that their order is that of the file.
 */

#include <gabion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARALLEL = 16, CHUNK = 1 << 20, SECTOR = 512 };

struct piece {
	size_t len;
	int busy;
	char data[CHUNK];
};

static gabion_cluster *cluster;

static void check(int result)
{
	if (result < 0) {
		fprintf(stderr, "%s\n", gabion_last_error(cluster));
		exit(1);
	}
}

/* Waits until this piece's request has completed; marks other requests that complete meanwhile. */
static void wait_for(struct piece *piece)
{
	while (piece->busy) {
		gabion_completion done[PARALLEL];
		int n = gabion_poll(cluster, done, PARALLEL, 1, -1);

		check(n);
		for (int i = 0; i < n; i++) {
			if (done[i].result < 0) {
				fprintf(stderr, "%s\n", gabion_strerror(done[i].result));
				exit(1);
			}
			((struct piece *)done[i].user)->busy = 0;
		}
	}
}

/* Rounds up to whole sectors: a volume is read and written in sectors. */
static size_t sectors(size_t len)
{
	return (len + SECTOR - 1) / SECTOR * SECTOR;
}

static void to_volume(gabion_volume *volume, struct piece *pieces)
{
	uint64_t at = 0;
	size_t turn = 0;

	for (;; turn++) {
		struct piece *p = &pieces[turn % PARALLEL];

		wait_for(p);
		p->len = fread(p->data, 1, CHUNK, stdin);
		if (p->len == 0)
			break;
		memset(p->data + p->len, 0, CHUNK - p->len);
		check(gabion_write(volume, p->data, sectors(p->len), at, 0, p));
		p->busy = 1;
		at += CHUNK;
	}
	for (int i = 0; i < PARALLEL; i++)
		wait_for(&pieces[i]);
	check(gabion_flush(volume, &pieces[0]));
	pieces[0].busy = 1;
	wait_for(&pieces[0]);
}

static void from_volume(gabion_volume *volume, struct piece *pieces, uint64_t bytes)
{
	uint64_t asked = 0, written = 0;

	while (written < bytes) {
		struct piece *next = &pieces[written / CHUNK % PARALLEL];

		while (asked < bytes && asked < written + (uint64_t)PARALLEL * CHUNK) {
			struct piece *p = &pieces[asked / CHUNK % PARALLEL];

			p->len = bytes - asked < CHUNK ? bytes - asked : CHUNK;
			check(gabion_read(volume, p->data, sectors(p->len), asked, p));
			p->busy = 1;
			asked += p->len;
		}
		wait_for(next);
		if (fwrite(next->data, 1, next->len, stdout) != next->len) {
			perror("can't write");
			exit(1);
		}
		written += next->len;
	}
}

int main(int argc, char **argv)
{
	struct gabion_options options = GABION_OPTIONS_INIT;
	struct piece *pieces = calloc(PARALLEL, sizeof(*pieces));
	gabion_volume *volume;

	if (!pieces || argc < 3 || argc > 4) {
		fprintf(stderr, "usage: %s IP:PORT|dir:PATH VOLUME [BYTES]\n", argv[0]);
		return 2;
	}
	options.queue_depth = PARALLEL;
	check(gabion_cluster_open(argv[1], &options, &cluster));
	check(gabion_volume_open(cluster, argv[2], &volume));
	if (argc == 3)
		to_volume(volume, pieces);
	else
		from_volume(volume, pieces, strtoull(argv[3], NULL, 10));
	gabion_volume_close(volume);
	gabion_cluster_close(cluster);
	free(pieces);
	return fflush(stdout) ? 1 : 0;
}
