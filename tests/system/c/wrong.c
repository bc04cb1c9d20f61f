/*
 * Misuses libgabion in every way that it promises to refuse. It must refuse with a message, and the
 * client must work afterwards. Valid as C and C++.
 */

#include <errno.h>
#include <gabion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <poll.h>

static gabion_cluster *cluster;
static gabion_volume *volume;

#define EXPECT(condition)                                                                \
	do {                                                                             \
		if (!(condition)) {                                                      \
			printf("line %d: not true: %s\n", __LINE__, #condition);         \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

static int says(gabion_cluster *c, const char *words)
{
	if (strstr(gabion_last_error(c), words))
		return 1;
	printf("`%s` should have been in `%s`\n", words, gabion_last_error(c));
	return 0;
}

static void *other_thread(void *nothing)
{
	gabion_completion done;

	EXPECT(gabion_poll(cluster, &done, 1, 0, 0) == -EPERM && says(NULL, "another thread"));
	EXPECT(gabion_flush(volume, NULL) == -EPERM && gabion_cluster_close(cluster) == -EPERM);
	EXPECT(says(cluster, "another thread"));
	return nothing;
}

static void other_places(void)
{
	pthread_t thread;
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		if (gabion_flush(volume, NULL) != -EPERM || gabion_volume_close(volume) != -EPERM ||
		    gabion_cluster_close(cluster) != -EPERM)
			_exit(1);
		_exit(0);
	}
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
	EXPECT(pthread_create(&thread, NULL, other_thread, NULL) == 0);
	EXPECT(pthread_join(thread, NULL) == 0);
}

static void opening(const char *where)
{
	struct gabion_options o = GABION_OPTIONS_INIT;
	gabion_cluster *c = NULL;

	EXPECT(gabion_cluster_open(where, NULL, NULL) == -EINVAL && says(NULL, "NULL"));
	EXPECT(gabion_cluster_open(NULL, NULL, &c) == -EINVAL && says(NULL, "mdm is NULL"));
	EXPECT(gabion_cluster_open("\xff", NULL, &c) == -EINVAL && says(NULL, "UTF-8"));
	o.struct_size = 4;
	EXPECT(gabion_cluster_open(where, &o, &c) == -EINVAL && says(NULL, "struct_size"));
	o.struct_size = sizeof(o);
	o.flags = 1;
	EXPECT(gabion_cluster_open(where, &o, &c) == -EINVAL && says(NULL, "flags"));
	o.flags = 0;
	o.queue_depth = 1 << 20;
	EXPECT(gabion_cluster_open(where, &o, &c) == -EINVAL && says(NULL, "at most"));
	o.queue_depth = 0;
	o.backend = 7;
	EXPECT(gabion_cluster_open(where, &o, &c) == -EINVAL && says(NULL, "backend"));
	o.backend = 0;
	o.name = "";
	EXPECT(gabion_cluster_open(where, &o, &c) == -EINVAL && says(NULL, "name"));
	o.name = NULL;
	o.timeout_ms = 300;
	/* Nothing listens there. */
	EXPECT(gabion_cluster_open("127.0.0.1:1", &o, &c) == -ETIMEDOUT && says(NULL, "127.0.0.1:1"));
	EXPECT(c == NULL);
}

static void requests(void)
{
	static char data[8192];
	gabion_completion done[8];
	struct gabion_volume_info info;

	EXPECT(gabion_read(NULL, data, 512, 0, NULL) == -EBADF && says(NULL, "not an open volume"));
	EXPECT(gabion_read((gabion_volume *)data, data, 512, 0, NULL) == -EBADF);
	EXPECT(gabion_poll((gabion_cluster *)(data + 1), done, 1, 0, 0) == -EBADF);
	EXPECT(gabion_read(volume, NULL, 512, 0, NULL) == -EINVAL && says(cluster, "NULL"));
	EXPECT(gabion_read(volume, data, 100, 0, NULL) == -EINVAL && says(cluster, "512"));
	EXPECT(gabion_read(volume, data, 512, 3, NULL) == -EINVAL && says(cluster, "512"));
	EXPECT(gabion_read(volume, data, (size_t)1 << 40, 0, NULL) == -EINVAL && says(cluster, "split"));
	EXPECT(gabion_write(volume, data, 512, 0, 2, NULL) == -EINVAL && says(cluster, "flags"));
	EXPECT(gabion_write_zeroes(volume, 512, 0, 8, NULL) == -EINVAL && says(cluster, "flags"));
	EXPECT(gabion_poll(cluster, NULL, 1, 0, 0) == -EINVAL);
	EXPECT(gabion_poll(cluster, done, 1, 2, 0) == -EINVAL && says(cluster, "min"));
	EXPECT(gabion_volume_stat(volume, NULL, sizeof(info)) == -EINVAL);
	/* Nothing is outstanding, so there is nothing to wait for. */
	EXPECT(gabion_poll(cluster, done, 8, 8, -1) == 0);

	/* Beyond the end: refused when the request is executed. */
	EXPECT(gabion_read(volume, data, 512, 1ull << 40, &info) == 0);
	EXPECT(gabion_poll(cluster, done, 8, 8, -1) == 1);
	EXPECT(done[0].result == -ERANGE && done[0].user == &info);
	EXPECT(strstr(gabion_strerror(done[0].result), "leaves the volume"));

	/* The queue is bounded; all requests in it complete. */
	for (int i = 0; i < 4; i++)
		EXPECT(gabion_write(volume, data, 4096, 4096 * i, GABION_FUA, &data[i]) == 0);
	EXPECT(gabion_flush(volume, NULL) == -EAGAIN && says(cluster, "poll"));
	EXPECT(gabion_poll(cluster, done, 3, 3, -1) == 3);
	EXPECT(gabion_poll(cluster, done, 8, 1, -1) == 1 && done[0].result == 4096);
	EXPECT(gabion_poll(cluster, done, 8, 8, -1) == 0);

	EXPECT(gabion_volume_stat(volume, &info, sizeof(info)) == 0);
	EXPECT(info.size == 64 << 20 && info.sector == 512 && info.block == 4096);
	EXPECT(gabion_volume_size(volume) == 64 << 20);
}

/* As in a program that also waits for other descriptors. */
static void by_descriptor(void)
{
	static char data[4096], back[4096];
	struct pollfd fd = { gabion_fd(cluster), POLLIN, 0 };
	gabion_completion done[4];

	memset(data, 7, sizeof(data));
	for (int i = 0; i < 100; i++) {
		int n, seen = 0;

		EXPECT(gabion_write(volume, data, 4096, 8192, 0, data) == 0);
		while (!seen) {
			n = gabion_poll(cluster, done, 4, 0, 0);
			EXPECT(n >= 0);
			seen += n;
			if (n == 0 && gabion_arm(cluster) == 1)
				EXPECT(poll(&fd, 1, 10000) == 1);
		}
		EXPECT(seen == 1 && done[0].result == 4096 && done[0].user == data);
	}
	EXPECT(gabion_read(volume, back, 4096, 8192, NULL) == 0);
	EXPECT(gabion_poll(cluster, done, 4, 1, -1) == 1 && memcmp(data, back, 4096) == 0);
	EXPECT(gabion_discard(volume, 4096, 8192, NULL) == 0);
	EXPECT(gabion_poll(cluster, done, 4, 1, -1) == 1 && done[0].result == 4096);
	EXPECT(gabion_read(volume, back, 4096, 8192, NULL) == 0);
	EXPECT(gabion_poll(cluster, done, 4, 1, -1) == 1 && back[0] == 0 && back[4095] == 0);
}

int main(int argc, char **argv)
{
	struct gabion_options o = GABION_OPTIONS_INIT;
	gabion_volume *none = NULL;

	EXPECT(argc == 2 && gabion_abi() == GABION_ABI && gabion_version() == GABION_VERSION);
	opening(argv[1]);
	o.queue_depth = 4;
	EXPECT(gabion_cluster_open(argv[1], &o, &cluster) == 0);
	EXPECT(gabion_volume_open(cluster, NULL, &none) == -EINVAL);
	EXPECT(gabion_volume_open(cluster, "vol1", NULL) == -EINVAL);
	EXPECT(gabion_volume_open(cluster, "none", &none) == -ENOENT && says(cluster, "none"));
	EXPECT(gabion_volume_open(cluster, "vol1", &volume) == 0 && none == NULL);
	requests();
	other_places();
	by_descriptor();
	EXPECT(gabion_volume_close(NULL) == 0 && gabion_cluster_close(NULL) == 0);
	EXPECT(gabion_volume_close(volume) == 0);
	/* Outstanding requests are dropped with the client. */
	EXPECT(gabion_volume_open(cluster, "vol1", &volume) == 0);
	EXPECT(gabion_flush(volume, NULL) == 0 && gabion_cluster_close(cluster) == 0);
	printf("all refused\n");
	return 0;
}
