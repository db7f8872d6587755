/* Functions in Rust that engine.c calls. src/ffi.rs has the same declarations
 * in Rust; change both together. */
#ifndef NVMEOF_FIO_H
#define NVMEOF_FIO_H

#include <stdint.h>

/* Options of the job; NULL: not given. */
struct nvmeof_target {
	const char *address;
	const char *subsystem;
	const char *provider;
	const char *hostnqn;
	const char *shm_folder;
	const char *path_policy;
	const char *dhchap_secret; /* both: @FILE */
	const char *dhchap_ctrl_secret;
	const char *job; /* name of the job */
	uint32_t nsid;
	uint32_t queues;
	uint32_t shm_copy; /* both: 0 or 1 */
	uint32_t crc;
	uint32_t reconnect_delay; /* seconds */
	int32_t ctrl_loss_tmo; /* both: seconds, negative: never */
	int32_t fast_io_fail_tmo;
	uint32_t keep_alive_tmo; /* seconds */
	uint32_t stall_ms; /* 0: no reports */
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

/* One operation; `user` is below 2^63 and is returned unchanged. */
struct nvmeof_request {
	uint64_t user;
	uint64_t kind;
	uint64_t offset;
	uint64_t len;
	uint64_t addr;
};

/* Result of an operation: 0 or an error number. */
struct nvmeof_ended {
	uint64_t user;
	int64_t error;
};

struct nvmeof_job;

/* Returned by nvmeof_fio_queue when there is no room. */
#define NVMEOF_BUSY (-1)

/* Functions return 0 or an error number, and print the cause to standard error,
 * unless documented otherwise. One thread at a time may use a job. */
int nvmeof_fio_look(const struct nvmeof_target *target, struct nvmeof_size *size);
int nvmeof_fio_open(const struct nvmeof_target *target, uint32_t depth,
		    struct nvmeof_job **job);
/* Contiguous memory for `count` operations of `len` bytes, or NULL. */
void *nvmeof_fio_allocate(struct nvmeof_job *job, uint64_t count, uint64_t len);
void nvmeof_fio_free(struct nvmeof_job *job);
int nvmeof_fio_queue(struct nvmeof_job *job, const struct nvmeof_request *request);
int nvmeof_fio_commit(struct nvmeof_job *job, int now);
/* Waits until `least` operations have completed, at most `timeout_ns` if that is
 * not negative, and writes up to `most` results to `ended`. Returns their
 * number, or a negative error number. */
int64_t nvmeof_fio_reap(struct nvmeof_job *job, uint32_t least, uint32_t most,
			int64_t timeout_ns, struct nvmeof_ended *ended);
void nvmeof_fio_close(struct nvmeof_job *job);

#endif
