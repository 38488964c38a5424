/* The bare system calls behind a sandbox, with nothing around them: what any implementation has to do at least.

   Reads a command a line and answers with microseconds: `fork LOWER FOLDER` makes a sandbox whose files are an overlay of
   LOWER, with process, mount, IPC, host name, control group and network namespaces of its own; `true` and `bash` run that
   program in it and wait; `delete` ends it and removes its folders. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAMESPACES (CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP | CLONE_NEWNET)
#define ROOM 4096

static char folder[ROOM];
static int user_namespace, init, handle;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(1);
}

static char *below(const char *name) {
    static char path[4][ROOM + 64];
    static int next;
    char *made = path[next++ & 3];
    snprintf(made, sizeof path[0], "%s/%s", folder, name);
    return made;
}

static void put(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text, strlen(text)) < 0) fail(path);
    close(file);
}

static void become_init(const char *options, int told, uid_t user, gid_t group) {
    char map[64];
    if (user_namespace) {
        put("/proc/self/setgroups", "deny");
        snprintf(map, sizeof map, "0 %d 1", user);
        put("/proc/self/uid_map", map);
        snprintf(map, sizeof map, "0 %d 1", group);
        put("/proc/self/gid_map", map);
    }
    if (mount(0, "/", 0, MS_REC | MS_PRIVATE, 0)) fail("private mounts");
    if (mount("overlay", below("root"), "overlay", 0, options)) fail("overlay");
    if (chdir(below("root"))) fail("chdir");
    if (mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0)) fail("proc");
    if (mount("dev", "dev", "tmpfs", MS_NOSUID, 0)) fail("dev");
    if (syscall(SYS_pivot_root, ".", ".")) fail("pivot_root");
    umount2(".", MNT_DETACH);
    if (chdir("/")) fail("chdir");
    if (write(told, "x", 1) != 1) fail("tell");
    for (;;) pause();
}

static void make(const char *lower) {
    static char options[4 * ROOM];
    int told[2];
    char ready;
    uid_t user = getuid();
    gid_t group = getgid();
    if (pipe2(told, O_CLOEXEC)) fail("pipe");
    mkdir(folder, 0700);
    mkdir(below("upper"), 0755);
    mkdir(below("work"), 0755);
    mkdir(below("root"), 0755);
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s%s", lower, below("upper"), below("work"),
             user_namespace ? ",userxattr" : "");
    init = syscall(SYS_clone, NAMESPACES | (user_namespace ? CLONE_NEWUSER : 0) | SIGCHLD, 0, 0, 0, 0);
    if (init < 0) fail("clone");
    if (init == 0) become_init(options, told[1], user, group);
    close(told[1]);
    if (read(told[0], &ready, 1) != 1) fail("the sandbox did not begin");
    close(told[0]);
    handle = syscall(SYS_pidfd_open, init, 0);
}

static void run(char *const *command) {
    int status = 0;
    pid_t outer = vfork();
    if (outer == 0) {
        if (setns(handle, NAMESPACES | (user_namespace ? CLONE_NEWUSER : 0))) _exit(7);
        pid_t inner = vfork();
        if (inner == 0) {
            execv(command[0], command);
            _exit(127);
        }
        waitpid(inner, &status, 0);
        _exit(WEXITSTATUS(status));
    }
    waitpid(outer, &status, 0);
    if (status) fail("the command in the sandbox failed");
}

static void end(void) {
    kill(init, SIGKILL);
    waitpid(init, 0, 0);
    close(handle);
    chmod(below("work/work"), 0700);
    rmdir(below("work/work"));
    rmdir(below("work"));
    rmdir(below("upper"));
    rmdir(below("root"));
    rmdir(folder);
}

int main(void) {
    static char line[2 * ROOM], lower[ROOM];
    char *true_[] = {"/bin/true", 0}, *bash[] = {"/bin/bash", "-c", "true", 0};
    user_namespace = geteuid() != 0;
    while (fgets(line, sizeof line, stdin)) {
        int fork_ = sscanf(line, "fork %4095s %4095s", lower, folder) == 2;
        double began = now();
        if (fork_) make(lower);
        else if (!strncmp(line, "true", 4)) run(true_);
        else if (!strncmp(line, "bash", 4)) run(bash);
        else end();
        printf("%.1f\n", now() - began);
        fflush(stdout);
    }
    return 0;
}
