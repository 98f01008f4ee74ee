/* The controls of the simulated runtime: what a test asks of simulated.c beside the runtime's own functions.
 *
 * Plain functions, for C and for ctypes. A stream is passed by the handle that the runtime knows it by: NULL, 1 and 2
 * are the default streams of the thread's current device. Texts belong to the simulation and live until what they
 * are part of is emptied. All may be called from any thread; simulated_reset only while no other call is under way. */
#ifndef SIMULATED_H
#define SIMULATED_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A new machine with so many devices: streams finish and end, every object is gone, nothing is set, logged or held. */
void
simulated_reset(int devices);

/* ---- Work -------------------------------------------------------------------------------------------------------- */

/* What is queued runs later, each piece after a random time up to this one, in microseconds. After a reset: 200. */
void
simulated_delay(unsigned most);

/* Nothing on a held stream runs until it is let go. A call that blocks the host behind a held stream for a second
 * is a violation, and lets go of all streams. */
void
simulated_hold(void *stream);
void
simulated_let_go(void *stream);

/* Returns when every stream has done what it can: it is empty, is held, or waits for another one. */
void
simulated_settle(void);

/* How much of what was queued on the stream has not run. */
size_t
simulated_pending(void *stream);

/* A kernel: function(argument), on the stream's thread. reads and writes point into the memory that it uses, or are
 * NULL: work on that memory which no event, stream order or host wait has put in order is a violation, however it
 * happens to run. A capturing stream keeps the kernel and never runs it. These return the runtime's error code. */
int
simulated_launch(void *stream, void (*function)(void *), void *argument, const void *reads, void *writes);

/* Two kernels ready made: one sets all bytes, the other's violation is a byte that is not as expected. */
int
simulated_fill(void *stream, void *memory, int value, size_t bytes);
int
simulated_expect(void *stream, const void *memory, int value, size_t bytes);

/* Has the host waited for all that was queued to write this memory? */
int
simulated_host_may_read(const void *memory);

/* ---- What to go wrong -------------------------------------------------------------------------------------------- */

/* Of the calls from now on of the function ("EventRecord"; NULL: of any), the nth, counted from 1, and those after it,
 * `times` in all (0: no end to them), do nothing and return the error. Replaces what was set before; nth 0 only
 * ends that. The functions that read errors are never counted. Where it is a wait for a stream that fails, or an exchange
 * of the capture mode, the context is lost, and copies that are queued never come to the host's memory. */
void
simulated_fail(const char *function, int nth, int times, int error);

/* How many calls have failed by the last simulated_fail. */
int
simulated_failed(void);

/* What PointerGetAttributes says of memory that it does not know: 1: an error, 0: that it is not registered.
 * A reset sets what the runtime of these headers does. */
void
simulated_unknown_memory_is_error(int yes);

/* ---- What was done ----------------------------------------------------------------------------------------------- */

/* The calls of the runtime since the mark, of all threads: "EventRecord(event 3, stream 5)"; one that returned an
 * error ends in its number: "StreamQuery(stream 5) -> 600". Handles are numbered in order of creation. */
void
simulated_mark(void);
size_t
simulated_calls(void);
const char *
simulated_call(size_t index); /* NULL: there are not so many */

/* What a driver, or a reader of its documentation, would object to. */
size_t
simulated_violations(void);
const char *
simulated_violation(size_t index);
void
simulated_forgive(void); /* empties the list */

/* Until the next reset, a call of the runtime on a thread for which this function returns 1 is a violation: for the GIL,
 * PyGILState_Check. NULL: none. */
void
simulated_watch_lock(int (*holds_lock)(void));

/* Around what is tested, on one thread: it leaves device, capture mode and last error as they were, or that is a
 * violation. */
void
simulated_begin(void);
void
simulated_end(void);

/* What exists: "event", "stream", "memory" or "graph". The names are those of the log, the newest first. */
size_t
simulated_live(const char *kind);
const char *
simulated_live_name(const char *kind, size_t index);

#ifdef __cplusplus
}
#endif

#endif /* SIMULATED_H */
