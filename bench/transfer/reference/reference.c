// The plain C with which "downbeat bench transfer" compares rdma: an epoll loop over TCP, and a copy out of shared
// memory with one futex wake. It is built at run time with "cc -O2 -pthread".
//
//	reference serve PEERS BYTES ADDR      listen on PEERS ports; print them; one process with an epoll loop each
//	reference tcp BYTES ADDR PORT...      per line "OP N" on stdin: run N times, print N latencies
//	reference shm PEERS BYTES             the same for op "fetch"
//
// Ops: "echo" sends 64 bytes and waits for 64; "incast" requests BYTES from every peer and waits for all.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ECHO_BYTES = 64, REQUEST_BYTES = 64, CONNS_MAX = 64 };

static uint64_t now_ns(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
	perror(what);
	exit(1);
}

static void nonblocking(int fd) {
	int one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// session is one connection of a server, with the rest of the answer to write.
struct session {
	int fd;
	size_t in;   // received bytes of the request
	size_t left; // bytes of the answer to write
	char request[REQUEST_BYTES];
};

struct server {
	int listen_fd;
	size_t bytes;
	char *data;
};

// push writes the rest of the answer, as much as the socket accepts.
static int push(struct session *s, const char *data, size_t bytes) {
	while (s->left > 0) {
		ssize_t n = write(s->fd, data + bytes - s->left, s->left);
		if (n < 0) return errno == EAGAIN ? 0 : -1;
		s->left -= (size_t)n;
	}
	return 0;
}

// serve_one reads a request and answers it, or continues the answer.
static int serve_one(struct server *v, struct session *s) {
	if (s->left > 0) return push(s, v->data, v->bytes);

	for (;;) {
		ssize_t n = read(s->fd, s->request + s->in, sizeof s->request - s->in);
		if (n == 0) return -1;
		if (n < 0) return errno == EAGAIN ? 0 : -1;

		s->in += (size_t)n;
		if (s->in < sizeof s->request) continue;

		s->in = 0;

		if (s->request[0] == 'e') {
			if (write(s->fd, s->request, sizeof s->request) != sizeof s->request) return -1;
		} else {
			s->left = v->bytes;
			return push(s, v->data, v->bytes);
		}

		return 0;
	}
}

static void serve_loop(struct server *v) {
	int ep = epoll_create1(0);
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL}, got[CONNS_MAX];
	epoll_ctl(ep, EPOLL_CTL_ADD, v->listen_fd, &ev);

	for (;;) {
		int n = epoll_wait(ep, got, CONNS_MAX, -1);
		for (int i = 0; i < n; i++) {
			struct session *s = got[i].data.ptr;
			if (s == NULL) {
				s = calloc(1, sizeof *s);
				s->fd = accept(v->listen_fd, NULL, NULL);
				if (s->fd < 0) die("accept");
				nonblocking(s->fd);
				ev = (struct epoll_event){.events = EPOLLIN, .data.ptr = s};
				epoll_ctl(ep, EPOLL_CTL_ADD, s->fd, &ev);
				continue;
			}

			size_t before = s->left;
			if (serve_one(v, s) < 0) {
				close(s->fd);
				free(s);
				continue;
			}

			// Wait for the direction that the session needs next.
			if ((before > 0) != (s->left > 0)) {
				ev = (struct epoll_event){.events = s->left > 0 ? EPOLLOUT : EPOLLIN, .data.ptr = s};
				epoll_ctl(ep, EPOLL_CTL_MOD, s->fd, &ev);
			}
		}
	}
}

// serve starts a process with an epoll loop for each peer.
static void serve(int peers, size_t bytes, const char *addr) {
	for (int i = 0; i < peers; i++) {
		struct server *v = calloc(1, sizeof *v);
		struct sockaddr_in a = {.sin_family = AF_INET};
		socklen_t len = sizeof a;
		inet_pton(AF_INET, addr, &a.sin_addr);

		v->bytes = bytes;
		v->data = malloc(bytes);
		memset(v->data, i, bytes);

		v->listen_fd = socket(AF_INET, SOCK_STREAM, 0);
		if (bind(v->listen_fd, (struct sockaddr *)&a, sizeof a) || listen(v->listen_fd, 16)) die("listen");
		getsockname(v->listen_fd, (struct sockaddr *)&a, &len);

		printf("%d ", ntohs(a.sin_port));
		fflush(stdout);

		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			serve_loop(v);
		}
	}

	printf("\n");
	fflush(stdout);
	while (getchar() != EOF) {
	}
}

struct client {
	int ep, peers;
	size_t bytes;
	int fd[CONNS_MAX];
	size_t got[CONNS_MAX];
	char *dst[CONNS_MAX];
};

// round_trip sends a request to some peers and waits for all answers.
static void round_trip(struct client *c, int peers, char op, size_t bytes) {
	char request[REQUEST_BYTES] = {op};
	struct epoll_event got[CONNS_MAX];
	int open = peers;

	for (int i = 0; i < peers; i++) {
		c->got[i] = 0;
		if (write(c->fd[i], request, sizeof request) != sizeof request) die("write");
	}

	while (open > 0) {
		int n = epoll_wait(c->ep, got, CONNS_MAX, -1);
		for (int k = 0; k < n; k++) {
			int i = (int)got[k].data.u32;
			while (c->got[i] < bytes) {
				ssize_t r = read(c->fd[i], c->dst[i] + c->got[i], bytes - c->got[i]);
				if (r == 0) die("server closed");
				if (r < 0) {
					if (errno == EAGAIN) break;
					die("read");
				}
				c->got[i] += (size_t)r;
				if (c->got[i] == bytes) open--;
			}
		}
	}
}

// client connects to all peers, then runs the operations on stdin.
static void client(size_t bytes, const char *addr, int peers, char **ports) {
	struct client c = {.ep = epoll_create1(0), .peers = peers, .bytes = bytes};
	for (int i = 0; i < peers; i++) {
		struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(ports[i]))};

		inet_pton(AF_INET, addr, &a.sin_addr);
		c.fd[i] = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(c.fd[i], (struct sockaddr *)&a, sizeof a)) die("connect");
		nonblocking(c.fd[i]);

		c.dst[i] = malloc(bytes);
		memset(c.dst[i], 0, bytes);

		struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
		epoll_ctl(c.ep, EPOLL_CTL_ADD, c.fd[i], &ev);
	}

	char op[16];
	int n;
	while (scanf("%15s %d", op, &n) == 2) {
		int echo = strcmp(op, "echo") == 0;
		for (int i = 0; i < n; i++) {
			uint64_t t = now_ns();
			round_trip(&c, echo ? 1 : peers, echo ? 'e' : 'r', echo ? ECHO_BYTES : bytes);
			printf("%llu\n", (unsigned long long)(now_ns() - t));
		}
		fflush(stdout);
	}
}

static uint32_t word; // futex

// sleeper waits for the wakes, so that each of them wakes a thread.
static void *sleeper(void *arg) {
	(void)arg;
	for (;;) {
		uint32_t seen = __atomic_load_n(&word, __ATOMIC_ACQUIRE);
		syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
	}
	return NULL;
}

// shm measures copies out of shared memory, each with a wake.
static void shm(int peers, size_t bytes) {
	int fd = memfd_create("reference", 0);
	size_t all = bytes * (size_t)peers;
	if (fd < 0 || ftruncate(fd, (off_t)all)) die("memfd");
	char *w = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	char *src = mmap(NULL, all, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	char *dst = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	memset(w, 1, all);

	pthread_t t;
	pthread_create(&t, NULL, sleeper, NULL);

	char op[16];
	int n;
	while (scanf("%15s %d", op, &n) == 2) {
		int incast = strcmp(op, "incast") == 0;
		for (int i = 0; i < n; i++) {
			uint64_t t0 = now_ns();
			if (incast) {
				for (int k = 0; k < peers; k++) memcpy(dst + bytes * (size_t)k, src + bytes * (size_t)k, bytes);
			} else {
				memcpy(dst + bytes * (size_t)(i % peers), src + bytes * (size_t)(i % peers), bytes);
			}

			__atomic_add_fetch(&word, 1, __ATOMIC_RELEASE);
			syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
			printf("%llu\n", (unsigned long long)(now_ns() - t0));
		}
		fflush(stdout);
	}
}

int main(int argc, char **argv) {
	if (argc == 5 && strcmp(argv[1], "serve") == 0) {
		serve(atoi(argv[2]), (size_t)atol(argv[3]), argv[4]);
	} else if (argc > 4 && strcmp(argv[1], "tcp") == 0 && argc - 4 <= CONNS_MAX) {
		client((size_t)atol(argv[2]), argv[3], argc - 4, argv + 4);
	} else if (argc == 4 && strcmp(argv[1], "shm") == 0) {
		shm(atoi(argv[2]), (size_t)atol(argv[3]));
	} else {
		return 2;
	}
	return 0;
}
