/* Who owns a capsule's tensor, and who drops the reference to the producer's object, as dlpack_py.h does it: a model
 * for Spin, of every interleaving of one capsule, two consumers, and the main thread, which ends the interpreter.
 * `make model` verifies each variant, and that each BREAK_... is found. The name of an inline is that of the function
 * in the header; each statement is one step that other threads can come between, an atomic block is one atomic
 * operation or a call that no other thread can see in parts.
 *
 * Variants: FREE_THREADED  without a GIL: several threads are attached, the capsule is used in a critical section
 *           PATIENT        the exit callback waits without a limit: a wait that is circular would be a deadlock
 *           FORKED         this is a forked child: two deleters of the parent are counted. One does not run; the other
 *                          forked in an owner's destructor, and goes on in the child
 *           TWO_GILS       with a GIL: threads may be attached to another interpreter, which has its own GIL
 *           EMBEDDED       the managed tensor is a part of the owner, and is freed with it
 *
 * Proved: the deleter runs once, unless CPython has stopped the thread that holds the tensor. It drops the reference,
 * or leaks it only after the exit callback (DLP_CLOSING). Nothing is used after it was freed. No wait is circular: an
 * end state in which a thread waits is invalid; a thread that CPython stopped has ended. No run has a loop, other than
 * the wait of the exit callback, which polls a limited number of times (here: it ends at any time).
 * Left out: what a timed out exit wait does to the thread state of the deleter that it did not wait for (timed_out).
 * PyThreadState_New that returns NULL: the reference leaks, also before the exit callback. The end of the other
 * interpreter. A fork at another place than in an owner's destructor. */

#define MAIN 3 /* the main thread; the consumers are 1 and 2 */
#define OTHER 4
#define PARENT 1
#define CHILD 2

/* CPython. */
byte gil;                   /* the attached thread, 0: none; FREE_THREADED: the number of attached threads */
byte gil2;                  /* TWO_GILS: the thread that is attached to the other interpreter */
bool finalizing;            /* Py_IsFinalizing: a thread that attaches is stopped for ever */
bool interpreter = true;    /* its memory is there */

/* The capsule, its managed tensor, and the producer's object. */
byte capsule_refs = 3;      /* of both consumers and of a module */
bool unused = true;         /* the name of the capsule: "dltensor", or "used_dltensor" */
bool section;               /* the critical section of the capsule */
bool managed = true;        /* the memory of the managed tensor and its dlp_manager, EMBEDDED: of the owner too */
byte owner_refs = 2;        /* of the export and of a module; 0: the owner is freed, with its dlpack_py_counter */
bool kept;                  /* a view is left in an object that is destroyed late */

/* dlp_lifetime, which is never freed. The header keeps closing and deleters in one word, closing_and_deleters. */
bool closing, gone;
byte deleters, process; /* process: 0, PARENT or CHILD */

/* What happened. */
byte deleted, dropped, leaked;
bool stranded;              /* CPython stopped a thread that holds the capsule or the tensor */
bool timed_out;             /* the exit callback did not wait until all deleters were done */

/* PyEval_RestoreThread, PyThreadState_New included. A thread that is stopped never returns from it. */
inline attach()
{
    if
#ifdef FREE_THREADED
    :: atomic { !finalizing && interpreter || me == MAIN -> gil++ }
#else
    :: atomic { gil == 0 && (!finalizing && interpreter || me == MAIN) -> gil = me }
#endif
    :: atomic { me != MAIN && (finalizing || !interpreter) -> stranded = stranded || holds; goto end_stopped }
    fi;
    is_attached = true
}

inline detach() /* PyEval_SaveThread */
{
    atomic {
        is_attached = false;
#ifdef FREE_THREADED
        gil--
#else
        gil = 0
#endif
    }
}

/* The same with the other interpreter. */
inline attach_to_other()
{
    if
    :: atomic { gil2 == 0 && !finalizing && interpreter -> gil2 = me }
    :: atomic { finalizing || !interpreter -> stranded = stranded || holds; goto end_stopped }
    fi
}

inline detach_from_other()
{
    gil2 = 0
}

/* Where Python code runs, another thread may get the GIL. */
inline run_python_code()
{
    if
    :: detach(); attach()
    :: skip
    fi
}

inline dlp_lifetime_after_fork()
{
#ifdef BREAK_FORK_READ_LATE
    inherited = 0;
#else
    inherited = deleters;                                       /* DLP_LOAD(closing_and_deleters) */
#endif
    if
    :: process != CHILD ->
        atomic { was = process; process = CHILD }               /* DLP_EXCHANGE */
        if
        :: was != CHILD ->
#ifdef BREAK_FORK_READ_LATE
            inherited = deleters;
#endif
            atomic { assert(deleters >= inherited); deleters = deleters - inherited }
        :: else
        fi
    :: else
    fi
}

inline decref_owner()
{
    assert(owner_refs > 0);
    owner_refs--;
#ifdef EMBEDDED
    managed = owner_refs > 0
#endif
}

inline dlp_drop_attached()
{
    assert(interpreter && is_attached && managed);              /* manager->exports and manager->owner are read */
#ifndef BREAK_EXPORTS_LAST
    assert(owner_refs > 0);                                     /* dlp_exports_add(manager->exports, -1) */
#endif
    atomic { dropped++; assert(dropped == 1); decref_owner() }  /* dlp_decref_keeping_error(manager->owner) */
#ifdef BREAK_EXPORTS_LAST
    assert(owner_refs > 0);
#endif
    run_python_code()                                           /* the owner's tp_dealloc */
}

inline dlp_attach_and_drop()
{
    dlp_lifetime_after_fork();
#ifdef BREAK_COUNT_AFTER_READ
    saw_closing = closing;
    deleters++;
#else
    atomic { saw_closing = closing; deleters++ }                /* DLP_ADD(closing_and_deleters, DLP_DELETER) */
#endif
    if
    :: !saw_closing && !finalizing ->
#if defined(TWO_GILS) && !defined(BREAK_NO_SAVE)
        if
        :: gil2 == me -> detach_from_other(); detached = true   /* current != NULL: PyEval_SaveThread */
        :: else
        fi;
#endif
        assert(interpreter || timed_out);                       /* PyThreadState_New(lifetime->interpreter) */
        attach();
#ifdef BREAK_UNCOUNT_EARLY
        deleters--;
#endif
        dlp_drop_attached();
        detach();
        assert(interpreter || timed_out)                        /* PyThreadState_Delete */
    :: else -> atomic { leaked++; assert(closing) }
    fi;
#ifdef BREAK_UNCOUNT_EARLY
    deleters++;
#endif
#ifdef BREAK_LIFETIME_LATE
    assert(managed);
#endif
    deleters--;                                                 /* DLP_ADD(closing_and_deleters, -DLP_DELETER) */
#ifdef TWO_GILS
    if
    :: detached -> attach_to_other()                            /* PyEval_RestoreThread(detached) */
    :: else
    fi
#endif
}

inline dlp_drop_owner()
{
    if
    :: !is_attached -> dlp_attach_and_drop()
#ifdef BREAK_NO_GONE
    :: is_attached -> dlp_drop_attached()
#else
    :: is_attached && !gone -> dlp_drop_attached()
    :: is_attached && gone -> leaked++
#endif
    fi
}

/* dlp_delete, and what the deleter calls: dlp_delete_versioned, dlp_release_manager. */
inline dlp_delete()
{
    atomic { assert(managed && deleted == 0); deleted++ }       /* manager->block and manager->lifetime are read */
    dlp_drop_owner();
#ifdef BREAK_BLOCK_LATE
    assert(managed);
#endif
#ifndef EMBEDDED
    managed = false                                             /* DLPACK_PY_FREE(block) */
#endif
}

inline dlp_capsule_destructor()
{
    if
#ifndef BREAK_NO_DESTRUCTOR
    :: unused -> dlp_delete()
#endif
    :: else
    fi
}

inline drop_capsule() /* Py_DECREF(capsule) */
{
    atomic { assert(capsule_refs > 0); capsule_refs--; is_last = capsule_refs == 0 }
    if
    :: is_last -> dlp_capsule_destructor()
    :: else
    fi
}

/* DLP_CRITICAL_SECTION and DLP_CRITICAL_SECTION_END: a critical section without a GIL; with a GIL, this thread keeps
 * the GIL in between. */
inline lock()
{
#if defined(FREE_THREADED) && !defined(BREAK_NO_SECTION)
    atomic { !section -> section = true }
#else
    skip
#endif
}

inline unlock()
{
#if defined(FREE_THREADED) && !defined(BREAK_NO_SECTION)
    section = false
#else
    skip
#endif
}

inline dlp_take_capsule()
{
    lock();
    takes = unused;                                             /* dlp_form_of(PyCapsule_GetName(capsule)) */
    if
    :: takes -> assert(managed); takes = false                  /* dlp_view_prepare refuses the tensor */
    :: takes ->
        assert(managed);                                        /* dlp_view_prepare accepts it */
#if !defined(BREAK_RENAME_LATE) && !defined(BREAK_NO_RENAME)
        unused = false                                          /* PyCapsule_SetName: the commit point (K4) */
#endif
    :: else
    fi;
    unlock();
#ifdef BREAK_RENAME_LATE
    run_python_code();
    unused = unused && !takes
#endif
}

/* A Python thread that consumes the capsule, and releases the view attached, or detached as a thread of C++ does. */
proctype Consumer(byte me)
{
    bool is_attached, detached, takes, is_last, saw_closing, holds = true;
    byte inherited, was;

    attach();
    dlp_take_capsule();
    drop_capsule();                                             /* dlp_decref_keeping_error(returned) */
    holds = takes;
    run_python_code();
    if
    :: !takes                                                   /* ValueError: it was consumed already */
    :: takes -> assert(managed && owner_refs > 0); dlp_delete() /* dlpack_py_release, attached */
    :: takes -> assert(managed && owner_refs > 0); detach(); dlp_delete() /* on a thread that is not attached */
#ifdef TWO_GILS
    :: takes -> detach(); attach_to_other(); dlp_delete(); detach_from_other() /* attached to the other interpreter */
#endif
    :: takes -> assert(managed && owner_refs > 0); kept = true  /* the view stays in an object of the interpreter */
    fi;
    holds = false;
    if
    :: is_attached -> detach()
    :: else
    fi;
end_stopped:
    skip
}

/* A thread of this interpreter that drops an owner of the other one: dlp_attach_and_drop the other way round. */
proctype Other(byte me)
{
    bool is_attached, holds;

    attach();
#ifndef BREAK_NO_SAVE
    detach();
#endif
    attach_to_other();
    detach_from_other();
#ifndef BREAK_NO_SAVE
    attach();
#endif
    detach();
end_stopped:
    skip
}

/* A thread that forked in the destructor of another owner: the rest of dlp_attach_and_drop, in the child. */
proctype Forker()
{
    bool is_attached = true;

    detach();
#ifdef BREAK_FORK_UNCOUNT
    deleters--                                                  /* although process != DLP_PROCESS() */
#endif
}

/* The exit callback. */
inline dlp_at_exit()
{
    dlp_lifetime_after_fork();
#ifndef BREAK_NO_CLOSING
    closing = true;                                             /* DLP_OR(closing_and_deleters, DLP_CLOSING) */
#endif
#ifndef BREAK_NO_WAIT
    if
    :: deleters > 0 && !finalizing ->
#ifndef BREAK_WAIT_ATTACHED
        detach();                                               /* Py_BEGIN_ALLOW_THREADS */
#endif
        do
        :: deleters == 0 -> break
#ifndef PATIENT
        :: deleters > 0 -> timed_out = true; break              /* waits is 0 */
#endif
        od;
#ifndef BREAK_WAIT_ATTACHED
        attach()
#endif
    :: else
    fi
#endif
}

inline dlp_state_destructor()
{
    closing = true;
    gone = true
}

/* The main thread: Py_FinalizeEx, and Py_Initialize again, with an interpreter at the same address. */
proctype Main(byte me)
{
    bool is_attached, detached, is_last, saw_closing, holds;
    byte inherited, was;

    attach();
    run_python_code();
    dlp_at_exit();
    run_python_code();
#ifdef FREE_THREADED
    atomic { gil == 1 -> finalizing = true }                    /* stops the world */
#else
    finalizing = true;
#endif
    drop_capsule();                                             /* the modules are torn down */
    atomic { decref_owner() };
    if
    :: kept -> kept = false; dlp_delete()                       /* before or after dlp_state_destructor */
    :: skip
    fi;
    dlp_state_destructor();
    interpreter = false;
    finalizing = false;
    if
    :: kept -> dlp_delete()                                     /* attached to a new interpreter at this address */
    :: else
    fi;
    detach();
end_stopped:
    skip
}

/* When no thread can go on. */
active proctype Judge()
{
    timeout;
    assert(deleted == 1 || stranded);
    assert(dropped + leaked == deleted || timed_out);
    assert(!(dropped == 1 && leaked == 1));
    assert(leaked == 0 || closing);
    assert(timed_out || deleters == 0);
#ifdef EMBEDDED
    assert(managed == (owner_refs > 0) && (!managed || leaked == 1 || stranded || timed_out))
#else
    assert(!managed || stranded || timed_out)
#endif
}

init
{
    atomic {
#ifdef FORKED
        process = PARENT;
        deleters = 2;
        gil = 1;
        run Forker();
#endif
#ifdef TWO_GILS
        run Other(OTHER);
#endif
        run Consumer(1);
        run Consumer(2);
        run Main(MAIN)
    }
}
