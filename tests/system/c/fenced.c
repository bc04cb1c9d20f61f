/*
 * A volume is unmapped from this client and mapped to it again. A handle from before that must not
 * work with the new permission, because others may have written to the volume in between.
 */

#include <errno.h>
#include <gabion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                \
	do {                                                                             \
		if (!(condition)) {                                                      \
			printf("line %d: not true: %s\n", __LINE__, #condition);         \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

static gabion_cluster *cluster;
static char block[4096];

/* Returns the result of a request that was started, or why it was not. */
static long long end(int started)
{
	struct gabion_completion done;

	if (started)
		return started;
	EXPECT(gabion_poll(cluster, &done, 1, 1, -1) == 1);
	return done.result;
}

static void wait_for_line(const char *said)
{
	char line[16];

	printf("%s\n", said);
	fflush(stdout);
	EXPECT(fgets(line, sizeof(line), stdin));
}

int main(int count, char **arguments)
{
	gabion_volume *before, *after;

	EXPECT(count == 2 && gabion_cluster_open(arguments[1], NULL, &cluster) == 0);
	EXPECT(gabion_volume_open(cluster, "vol1", &before) == 0);
	EXPECT(end(gabion_write(before, block, 4096, 0, 0, NULL)) == 4096);

	wait_for_line("written");
	/* It was idle. Whatever teaches the client the new map, the old handle stays out. */
	EXPECT(gabion_volume_open(cluster, "vol1", &after) == 0);
	memset(block, 1, sizeof(block));
	EXPECT(end(gabion_write(before, block, 4096, 0, 0, NULL)) == -ESTALE);
	EXPECT(strstr(gabion_last_error(cluster), "open it again"));
	EXPECT(end(gabion_discard(before, 4096, 0, NULL)) == -ESTALE);
	EXPECT(end(gabion_read(before, block, 4096, 0, NULL)) == -ESTALE);
	EXPECT(end(gabion_flush(before, NULL)) == -ESTALE);
	memset(block, 9, sizeof(block));
	EXPECT(end(gabion_read(after, block, 4096, 0, NULL)) == 4096 && block[0] == 2);
	memset(block, 3, sizeof(block));
	EXPECT(end(gabion_write(after, block, 4096, 0, 0, NULL)) == 4096);
	EXPECT(gabion_volume_close(before) == 0 && gabion_cluster_close(cluster) == 0);
	printf("kept out\n");
	return 0;
}
