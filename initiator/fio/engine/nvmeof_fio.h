/* What fio's side of the engine calls on the other. src/ffi.rs has the same
 * declarations in Rust; the two change together. */
#ifndef NVMEOF_FIO_H
#define NVMEOF_FIO_H

#include <stdint.h>

/* Where to connect: options of the job; NULL is not given. */
struct nvmeof_target {
	const char *address;
	const char *subsystem;
	const char *provider;
	const char *hostnqn;
	const char *shm_folder;
	uint32_t nsid;
	uint32_t queues;
	uint32_t shm_copy; /* these two: 0 or 1 */
	uint32_t crc;
};

/* Size of a namespace, in bytes. */
struct nvmeof_size {
	uint64_t bytes;
	uint64_t block;
};

enum nvmeof_kind {
	NVMEOF_READ = 0,
	NVMEOF_WRITE = 1,
	NVMEOF_WRITE_FUA = 2,
	NVMEOF_TRIM = 3,
	NVMEOF_FLUSH = 4,
};

/* One operation; `user` is below 2^63 and comes back as it is. */
struct nvmeof_request {
	uint64_t user;
	uint64_t kind;
	uint64_t offset;
	uint64_t len;
	uint64_t addr;
};

/* How one ended: 0 or an error number. */
struct nvmeof_ended {
	uint64_t user;
	int64_t error;
};

struct nvmeof_job;

/* What nvmeof_fio_queue returns besides 0 and error numbers. */
#define NVMEOF_BUSY (-1)

/* All return 0 or an error number, which standard error explains, unless they
 * say otherwise. A job is used by one thread at a time. */
int nvmeof_fio_look(const struct nvmeof_target *target, struct nvmeof_size *size);
int nvmeof_fio_open(const struct nvmeof_target *target, uint32_t depth,
		    struct nvmeof_job **job);
/* Memory for `count` operations of `len` bytes side by side, or NULL. */
void *nvmeof_fio_allocate(struct nvmeof_job *job, uint64_t count, uint64_t len);
void nvmeof_fio_free(struct nvmeof_job *job);
int nvmeof_fio_queue(struct nvmeof_job *job, const struct nvmeof_request *request);
int nvmeof_fio_commit(struct nvmeof_job *job, int now);
/* Waits for at least `least` ends, for `timeout_ns` at most where that is not
 * negative, and writes up to `most` to `ended`. Returns how many, or an error
 * number below 0. */
int64_t nvmeof_fio_reap(struct nvmeof_job *job, uint32_t least, uint32_t most,
			int64_t timeout_ns, struct nvmeof_ended *ended);
void nvmeof_fio_close(struct nvmeof_job *job);

#endif
