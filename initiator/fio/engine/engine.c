/* fio's side of the engine: it accesses fio's structures, and passes numbers and
 * strings to the functions of nvmeof_fio.h.
 *
 * It is compiled with the headers of the installed fio, which are not part of
 * this project; `cargo xtask fio-engine` fetches them. ENGINE_FIO_VERSION is
 * their version. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fio.h"
#include "optgroup.h"

#include "nvmeof_fio.h"

struct engine_options {
	void *pad; /* to fio, an offset of 0 means no option */
	char *address;
	char *subsystem;
	char *provider;
	char *hostnqn;
	char *shm_folder;
	char *path_policy;
	char *dhchap_secret;
	char *dhchap_ctrl_secret;
	unsigned int nsid;
	unsigned int queues;
	unsigned int shm_copy;
	unsigned int crc;
	unsigned int reconnect_delay;
	int ctrl_loss_tmo;
	int fast_io_fail_tmo;
	unsigned int keep_alive_tmo;
	unsigned int stall_ms;
};

#define ENGINE_OPTION(NAME, LONG, TYPE, FIELD, HELP) \
	.name = NAME, .lname = LONG, .type = TYPE, \
	.off1 = offsetof(struct engine_options, FIELD), .help = HELP, \
	.category = FIO_OPT_C_ENGINE, .group = FIO_OPT_G_INVALID

static struct fio_option options[] = {
	{
		ENGINE_OPTION("address", "Target address", FIO_OPT_STR_STORE, address,
			      "Address of the target: IP, IP:PORT (port 4420), unix:/path; "
			      "several paths to the namespace: A,B"),
	},
	{
		ENGINE_OPTION("subsystem", "Subsystem NQN", FIO_OPT_STR_STORE, subsystem,
			      "NQN of the subsystem"),
	},
	{
		ENGINE_OPTION("namespace", "Namespace", FIO_OPT_INT, nsid,
			      "Namespace ID"),
		.def = "1",
		.minval = 1,
	},
	{
		ENGINE_OPTION("provider", "RDMA provider", FIO_OPT_STR_STORE, provider,
			      "RDMA provider: auto, iwarp (software), verbs (devices) or shm"),
		.def = "auto",
	},
	{
		ENGINE_OPTION("shm_folder", "Shared memory folder", FIO_OPT_STR_STORE,
			      shm_folder,
			      "Folder of the sockets of targets on this host (their shm.folder); "
			      "default: folders of this user and of the system"),
	},
	{
		ENGINE_OPTION("shm_copy", "Copy through shared memory", FIO_OPT_BOOL, shm_copy,
			      "Copy data through rings even if the target runs as this user or "
			      "root and could access the buffers of fio in place"),
		.def = "0",
	},
	{
		ENGINE_OPTION("crc", "CRC of software iWARP", FIO_OPT_BOOL, crc,
			      "Request a CRC on every frame of software iWARP"),
		.def = "0",
	},
	{
		ENGINE_OPTION("queues", "I/O queues", FIO_OPT_INT, queues,
			      "I/O queues of each job, which share its iodepth"),
		.def = "1",
		.minval = 1,
	},
	{
		ENGINE_OPTION("path_policy", "Path policy", FIO_OPT_STR_STORE, path_policy,
			      "Choice among several paths: round-robin, queue-depth, latency or "
			      "numa"),
		.def = "round-robin",
	},
	{
		ENGINE_OPTION("reconnect_delay", "Reconnect delay", FIO_OPT_INT,
			      reconnect_delay,
			      "Longest delay between attempts to connect a lost path, in seconds"),
		.def = "1",
	},
	{
		ENGINE_OPTION("ctrl_loss_tmo", "Controller loss timeout", FIO_OPT_INT,
			      ctrl_loss_tmo,
			      "Time after which a lost path is given up, in seconds; -1: never, "
			      "0: it is not connected again"),
		.def = "600",
		.minval = -1,
	},
	{
		ENGINE_OPTION("fast_io_fail_tmo", "Fast I/O fail timeout", FIO_OPT_INT,
			      fast_io_fail_tmo,
			      "Time after which operations without a path fail, in seconds; "
			      "-1: when each path is given up"),
		.def = "-1",
		.minval = -1,
	},
	{
		ENGINE_OPTION("keep_alive_tmo", "Keep alive timeout", FIO_OPT_INT,
			      keep_alive_tmo, "Keep Alive Timeout, in seconds"),
		.def = "5",
		.minval = 1,
	},
	{
		ENGINE_OPTION("stall_ms", "Stall threshold", FIO_OPT_INT, stall_ms,
			      "Report intervals of this length without a completion, in "
			      "milliseconds; 0: none"),
		.def = "1000",
	},
	{
		ENGINE_OPTION("hostnqn", "Host NQN", FIO_OPT_STR_STORE, hostnqn,
			      "NQN of this host (default: /etc/nvme/hostnqn)"),
	},
	{
		ENGINE_OPTION("dhchap_secret", "Host key", FIO_OPT_STR_STORE, dhchap_secret,
			      "Key of this host for authentication: @FILE (default: variable "
			      "NVMEOF_DHCHAP_SECRET)"),
	},
	{
		ENGINE_OPTION("dhchap_ctrl_secret", "Controller key", FIO_OPT_STR_STORE,
			      dhchap_ctrl_secret,
			      "Key that the controller has to prove: @FILE (default: variable "
			      "NVMEOF_DHCHAP_CTRL_SECRET)"),
	},
	{
		.name = NULL,
	},
};

/* A job after init, in td->io_ops_data. */
struct engine_data {
	struct nvmeof_job *job;
	struct nvmeof_ended *ended;
	unsigned int room;
	bool immediate;
	bool no_memory;
};

extern struct ioengine_ops ioengine;

static struct nvmeof_target target_of(struct thread_data *td)
{
	const struct engine_options *o = td->eo;
	struct nvmeof_target target = {
		.address = o->address,
		.subsystem = o->subsystem,
		.provider = o->provider,
		.hostnqn = o->hostnqn,
		.shm_folder = o->shm_folder,
		.path_policy = o->path_policy,
		.dhchap_secret = o->dhchap_secret,
		.dhchap_ctrl_secret = o->dhchap_ctrl_secret,
		.job = td->o.name,
		.nsid = o->nsid,
		.queues = o->queues,
		.shm_copy = o->shm_copy,
		.crc = o->crc,
		.reconnect_delay = o->reconnect_delay,
		.ctrl_loss_tmo = o->ctrl_loss_tmo,
		.fast_io_fail_tmo = o->fast_io_fail_tmo,
		.keep_alive_tmo = o->keep_alive_tmo,
		.stall_ms = o->stall_ms,
	};

	return target;
}

/* Structures of another version would be misread without an error. */
static bool fio_matches_headers(struct thread_data *td)
{
	if (strcmp(fio_version_string, ENGINE_FIO_VERSION)) {
		log_err("nvmeof: the engine was built for %s, this is %s; rebuild it "
			"with `cargo xtask fio-engine`\n",
			ENGINE_FIO_VERSION, fio_version_string);
		return false;
	}
	if (td->io_ops != &ioengine) {
		log_err("nvmeof: the structures of fio do not match the headers that the "
			"engine was built with; rebuild it with the headers of this fio "
			"(`cargo xtask fio-engine --fio-source DIR`)\n");
		return false;
	}
	return true;
}

static int refuse(struct thread_data *td, int error)
{
	td_verror(td, error, "nvmeof");
	return error;
}

static bool has_whole_blocks(struct thread_data *td, uint64_t block)
{
	enum fio_ddir ddir;

	for (ddir = DDIR_READ; ddir <= DDIR_TRIM; ddir++) {
		bool used = ddir == DDIR_READ ? td_read(td) :
			ddir == DDIR_WRITE ? td_write(td) : td_trim(td);

		if (used && td->o.min_bs[ddir] % block) {
			log_err("nvmeof: bs=%llu of job %s is not a whole number of "
				"blocks of %llu bytes of namespace %u\n",
				td->o.min_bs[ddir], td->o.name,
				(unsigned long long) block,
				((struct engine_options *) td->eo)->nsid);
			return false;
		}
	}
	return true;
}

/* The memory of this engine begins on a page boundary. */
static bool has_fitting_alignment(struct thread_data *td)
{
	if (td->o.mem_align <= page_size)
		return true;
	log_err("nvmeof: iomem_align=%u of job %s is larger than a page of %d bytes; "
		"remove it\n", td->o.mem_align, td->o.name, (int) page_size);
	return false;
}

/* Reads the size in a child process: librdmacm keeps devices open until the
 * process ends, and Linux refuses them (EACCES, ib_safe_file_access) to
 * processes that are forked meanwhile, such as fio's jobs. */
static int look(const struct nvmeof_target *target, struct nvmeof_size *size)
{
	struct {
		struct nvmeof_size size;
		int error;
	} answer;
	int ends[2];
	ssize_t got = 0;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC))
		return errno;
	pid = fork();
	if (!pid) {
		memset(&answer, 0, sizeof(answer));
		answer.error = nvmeof_fio_look(target, &answer.size);
		got = write(ends[1], &answer, sizeof(answer));
		_exit(got != sizeof(answer));
	}
	close(ends[1]);
	if (pid > 0) {
		do
			got = read(ends[0], &answer, sizeof(answer));
		while (got < 0 && errno == EINTR);
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	close(ends[0]);
	if (got != sizeof(answer)) {
		log_err("nvmeof: the process that reads the size of the namespace %s\n",
			pid < 0 ? "could not be started" : "terminated unexpectedly");
		return EIO;
	}
	*size = answer.size;
	return answer.error;
}

/* Reads the size of the namespace before fio forks. */
static int engine_setup(struct thread_data *td)
{
	struct nvmeof_target target;
	struct nvmeof_size size = { 0 };
	int error;

	if (!fio_matches_headers(td))
		return 1;
	if (!td->files_index) {
		add_file(td, "nvmeof", 0, 0);
		td->o.nr_files = td->o.nr_files ? : 1;
		td->o.open_files++;
	}
	if (td->o.nr_files != 1) {
		log_err("nvmeof: job %s has %u files; a job uses one namespace: remove "
			"filename= and nrfiles=\n", td->o.name, td->o.nr_files);
		return refuse(td, EINVAL);
	}

	if (!has_fitting_alignment(td))
		return refuse(td, EINVAL);

	target = target_of(td);
	error = look(&target, &size);
	if (error)
		return refuse(td, error);
	if (!has_whole_blocks(td, size.block))
		return refuse(td, EINVAL);

	td->files[0]->filetype = FIO_TYPE_BLOCK;
	td->files[0]->real_file_size = size.bytes;
	fio_file_set_size_known(td->files[0]);
	return 0;
}

/* In the job's own thread or process. */
static int engine_init(struct thread_data *td)
{
	struct nvmeof_target target = target_of(td);
	struct engine_data *data = calloc(1, sizeof(*data));
	int error;

	if (!data)
		return refuse(td, ENOMEM);
	data->room = td->o.iodepth;
	data->ended = calloc(data->room, sizeof(*data->ended));
	error = data->ended ? nvmeof_fio_open(&target, data->room, &data->job) : ENOMEM;
	if (error) {
		free(data->ended);
		free(data);
		return refuse(td, error);
	}
	/* A job that pauses between operations does not soon return to send the
	 * collected ones. */
	data->immediate = td->o.thinktime || td->o.read_iolog_file ||
		(td->flags & TD_F_CHECK_RATE) || td->o.iodepth_batch > 1;
	td->io_ops_data = data;
	return 0;
}

static void engine_cleanup(struct thread_data *td)
{
	struct engine_data *data = td->io_ops_data;

	if (!data)
		return;
	nvmeof_fio_close(data->job);
	free(data->ended);
	free(data);
	td->io_ops_data = NULL;
}

/* Page-aligned memory, one buffer of the largest block size for each operation,
 * laid out as fio expects. */
static int engine_iomem_alloc(struct thread_data *td, size_t total)
{
	struct engine_data *data = td->io_ops_data;
	unsigned long long len = td_max_bs(td);

	/* fio would align the address, which is aligned already. */
	td->o.mem_align = 0;
	td->orig_buffer = nvmeof_fio_allocate(data->job, (total + len - 1) / len, len);
	data->no_memory = !td->orig_buffer;
	return data->no_memory ? ENOMEM : 0;
}

/* fio continues after a failed allocation, and would write to that address. */
static int engine_post_init(struct thread_data *td)
{
	const struct engine_data *data = td->io_ops_data;

	return data->no_memory ? refuse(td, ENOMEM) : 0;
}

static void engine_iomem_free(struct thread_data *td)
{
	struct engine_data *data = td->io_ops_data;

	if (data)
		nvmeof_fio_free(data->job);
	td->orig_buffer = NULL;
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u)
{
	struct engine_data *data = td->io_ops_data;
	struct nvmeof_request request = {
		.user = (uintptr_t) io_u,
		.offset = io_u->offset,
		.len = io_u->xfer_buflen,
		.addr = (uintptr_t) io_u->xfer_buf,
	};
	int error;

	if (io_u->ddir == DDIR_READ)
		request.kind = NVMEOF_READ;
	else if (io_u->ddir == DDIR_WRITE)
		request.kind = td->o.sync_io ? NVMEOF_WRITE_FUA : NVMEOF_WRITE;
	else if (io_u->ddir == DDIR_TRIM)
		request.kind = NVMEOF_TRIM;
	else if (ddir_sync(io_u->ddir))
		request.kind = NVMEOF_FLUSH;
	else {
		io_u->error = EINVAL;
		return FIO_Q_COMPLETED;
	}

	error = nvmeof_fio_queue(data->job, &request);
	if (!error)
		return FIO_Q_QUEUED;
	if (error == NVMEOF_BUSY)
		return FIO_Q_BUSY;
	io_u->error = error;
	return FIO_Q_COMPLETED;
}

static int engine_commit(struct thread_data *td)
{
	struct engine_data *data = td->io_ops_data;

	return -nvmeof_fio_commit(data->job, data->immediate);
}

static int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max,
			    const struct timespec *t)
{
	struct engine_data *data = td->io_ops_data;
	int64_t timeout = t ? t->tv_sec * 1000000000LL + t->tv_nsec : -1;

	if (max > data->room)
		max = data->room;
	return nvmeof_fio_reap(data->job, min, max, timeout, data->ended);
}

static struct io_u *engine_event(struct thread_data *td, int event)
{
	struct engine_data *data = td->io_ops_data;
	struct io_u *io_u = (struct io_u *) (uintptr_t) data->ended[event].user;

	io_u->error = data->ended[event].error;
	return io_u;
}

/* There is no file and no cache. */
static int engine_no_op(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

struct ioengine_ops ioengine = {
	.name = "nvmeof",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_DISKLESSIO | FIO_RAWIO | FIO_NOEXTEND | FIO_NODISKUTIL |
		FIO_MEMALIGN | FIO_NO_OFFLOAD,
	.setup = engine_setup,
	.init = engine_init,
	.post_init = engine_post_init,
	.cleanup = engine_cleanup,
	.iomem_alloc = engine_iomem_alloc,
	.iomem_free = engine_iomem_free,
	.queue = engine_queue,
	.commit = engine_commit,
	.getevents = engine_getevents,
	.event = engine_event,
	.open_file = engine_no_op,
	.close_file = engine_no_op,
	.invalidate = engine_no_op,
	.options = options,
	.option_struct_size = sizeof(struct engine_options),
};
