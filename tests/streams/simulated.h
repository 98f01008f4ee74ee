/* The controls of the simulated runtime: the functions of simulated.c that are not functions of the runtime.
 *
 * Plain functions, for C and for ctypes. A stream is passed by its handle in the runtime: NULL, 1 and 2 are the default
 * streams of the thread's current device. The simulation owns all texts; a text lives until its list is emptied. All
 * functions may be called from any thread; simulated_reset only while no other call is in progress. */
#ifndef SIMULATED_H
#define SIMULATED_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts a new machine with this many devices. Streams finish and end, all objects, settings and logs are deleted. */
void
simulated_reset(int devices);

/* ---- Work -------------------------------------------------------------------------------------------------------- */

/* Each queued item runs after a random delay of up to this many microseconds. After a reset: 200. */
void
simulated_delay(unsigned most);

/* Work on a held stream does not run until simulated_let_go. A call that blocks the host behind a held stream for a
 * second is a violation, and ends the hold of all streams. */
void
simulated_hold(void *stream);
void
simulated_let_go(void *stream);

/* Returns when every stream is empty, is held, or waits for another stream. */
void
simulated_settle(void);

/* The number of queued items of the stream that have not run. */
size_t
simulated_pending(void *stream);

/* A kernel: function(argument), on the stream's thread. reads and writes point into the memory that the kernel uses, or
 * are NULL. Two uses of memory that no event, stream order or host wait orders are a violation, even if they run in the
 * right order by chance. On a capturing stream the kernel runs when the graph is launched. These functions return the
 * runtime's error code. */
int
simulated_launch(void *stream, void (*function)(void *), void *argument, const void *reads, void *writes);

/* Two kernels: simulated_fill sets all bytes; simulated_expect reports each unexpected byte as a violation. */
int
simulated_fill(void *stream, void *memory, int value, size_t bytes);
int
simulated_expect(void *stream, const void *memory, int value, size_t bytes);

/* Whether the host has waited for all queued writes to this memory. */
int
simulated_host_may_read(const void *memory);

/* yes: the host may read managed memory only while nothing runs on its device, as where the attribute
 * ConcurrentManagedAccess is 0. A reset restores 0. */
void
simulated_managed_is_exclusive(int yes);

/* ---- Handles and contexts ---------------------------------------------------------------------------------------- */

/* yes: a new stream or event gets the handle of a destroyed stream or event. The use of a destroyed handle is then not
 * always noticed. A reset restores 0. */
void
simulated_reuse_handles(int yes);

/* Makes a context of the current device current for this thread, as cuCtxSetCurrent does. 0: the primary context, which
 * SetDevice makes current, too. New streams and events belong to the current context. */
void
simulated_set_context(int context);

/* ---- Forced errors ----------------------------------------------------------------------------------------------- */

/* Makes calls of a function ("EventRecord"; NULL: of any function) fail: from now on the nth call, counted from 1, and
 * the calls after it, `times` in all (0: without end), do nothing and return the error. Replaces the earlier setting;
 * nth 0 only clears it. The functions that read errors are not counted. If a wait for a stream or an exchange of the
 * capture mode fails, the context is lost, and queued copies are never written to the host's memory. */
void
simulated_fail(const char *function, int nth, int times, int error);

/* How many calls have failed by the last simulated_fail. */
int
simulated_failed(void);

/* The result of PointerGetAttributes for unknown memory. 1: an error, 0: not registered. A reset restores the behaviour
 * of the runtime of these headers. */
void
simulated_unknown_memory_is_error(int yes);

/* ---- The log ----------------------------------------------------------------------------------------------------- */

/* The calls of the runtime since simulated_mark, by all threads: "EventRecord(event 3, stream 5)". A call that returned
 * an error ends with the error number: "StreamQuery(stream 5) -> 600". Handles are numbered in order of creation. */
void
simulated_mark(void);
size_t
simulated_calls(void);
const char *
simulated_call(size_t index); /* NULL: fewer calls */

/* Violations: uses of the runtime that its documentation forbids or that a driver refuses. */
size_t
simulated_violations(void);
const char *
simulated_violation(size_t index);
void
simulated_forgive(void); /* empties the list */

/* Until the next reset, a call of the runtime on a thread for which this function returns 1 is a violation. For the
 * GIL, pass PyGILState_Check. NULL: no check. */
void
simulated_watch_lock(int (*holds_lock)(void));

/* Called before and after the tested code, on one thread: a change of the device, the capture mode or the last error is
 * a violation. */
void
simulated_begin(void);
void
simulated_end(void);

/* The live objects of a kind: "event", "stream", "memory" or "graph". The names are the names in the log, the newest
 * first. */
size_t
simulated_live(const char *kind);
const char *
simulated_live_name(const char *kind, size_t index);

#ifdef __cplusplus
}
#endif

#endif /* SIMULATED_H */
