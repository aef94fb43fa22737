// The virtual NPU's driver: a program that runs one kernel once, over blocks and cores, and writes what it found.
//
//     vnpu-driver PLAN
//
// PLAN is a text file (see `read_plan`) that run.py writes. The report has one JSON object per line: notes, reads
// outside of a tensor, and at most one fault, which ends the run with status 3.
//
// Order of execution. Each core has a thread, but within a block only one core runs at a time, from one wait to the
// next, vector cores first. Runs are therefore repeatable, a core that forgets to wait overtakes the others at once,
// and a block whose cores all wait is a deadlock the moment it happens. Up to `threads` blocks run side by side.
// Blocks beyond these are started when one ends or, where all cores of the chip wait for each other, when nothing
// moves.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <fcntl.h>

#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core.hpp"

namespace {
using namespace vnpu;

constexpr uint64_t poison = 0x0001000100010001ull * 0xffe5;  // as in instructions.hpp
constexpr uint64_t page = 4096, guard = 64 * page;
constexpr const char *kind_names[] = {"cube", "vector"};
constexpr const char *memory_names[] = {"UB", "L1", "L0A", "L0B", "L0C", "bias table", "fixpipe buffer"};
constexpr int flag_count = 32, flag_limit = 15;

struct Argument {
    bool tensor;
    uint64_t value, offset, size;  // scalar: value; tensor: place in the tensor file and bytes
};

struct Plan {
    unsigned threads = 1;
    double limit = 60;
    bool a5 = false;
    uint64_t memory[memory_count] = {};
    std::string library[2], tensors, report;
    std::vector<Argument> arguments;
} plan;

enum class State { idle, ready, running, blocked, done };

struct Seat {  // a core and its thread; serves one block after the other
    Core core{};
    State state = State::idle;
    int wanted = 0;                 // flag that a blocked core waits for
    int incoming[flag_count] = {};  // signals that arrived and were not yet waited for
    std::condition_variable turn;
    std::thread thread;
};

struct Block {
    std::vector<std::unique_ptr<Seat>> seats;  // in order of preference
    int pair[3][2][flag_count] = {};           // signals of the two vector cores that wait for the other's, by mode
    bool live = false;
};

std::mutex mutex;
std::condition_variable finished;
std::vector<std::unique_ptr<Block>> blocks;  // resident ones
std::vector<Block *> block_at;               // by block index; null while not resident
uint32_t next_block = 0, block_count = 0;
unsigned running = 0;
bool chip_wide = false, over = false;     // chip_wide: a flag of mode 0 was used
std::vector<int> arrived[2][flag_count];  // mode 0, per kind and flag: signals by core
std::vector<Parameter> parameters;
std::vector<uint64_t> values;
Host host;
Entry entries[2];
FILE *report;
std::map<std::pair<int, std::string>, bool> noted;  // what was said of which line
thread_local Core *current = nullptr;

const char *name_of(const Core &core) {
    static thread_local char name[64];
    if (core.kind == cube)
        std::snprintf(name, sizeof name, "cube core of block %u", core.block);
    else
        std::snprintf(name, sizeof name, "vector core %u of block %u", core.sub, core.block);
    return name;
}

std::string text_of(const char *format, ...) {
    char text[1024];
    va_list list;
    va_start(list, format);
    std::vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return text;
}

void say(std::string line) {
    line += '\n';
    std::fwrite(line.data(), 1, line.size(), report);  // one call: lines of two threads do not mix
}

[[noreturn]] void leave(int status) {
    std::fflush(report);
    std::fflush(stdout);
    _exit(status);
}

[[noreturn]] void fault(const Core *core, const char *kind, const char *text) {
    static std::mutex first;  // never unlocked: later faults wait here for the exit
    first.lock();
    say(text_of(R"({"event": "fault", "kind": "%s", "line": %d, "core": "%s", "text": "%s"})", kind,
                core ? core->line : 0, core ? name_of(*core) : "", text));
    leave(3);
}

void note(const Core *core, const char *text) {
    std::lock_guard lock(mutex);
    if (std::exchange(noted[{core->line, text}], true)) return;
    say(text_of(R"({"event": "note", "line": %d, "core": "%s", "text": "%s"})", core->line, name_of(*core), text));
}

// Parameter that an address strayed from, and the offset into it in bytes (negative: before its start).
int parameter_of(uint64_t address, int64_t &offset) {
    uint64_t slot = (address - host.slots) >> host.slot_bits;
    if (address < host.slots || slot >= parameters.size()) return -1;
    offset = static_cast<int64_t>(address - reinterpret_cast<uint64_t>(parameters[slot].base));
    return static_cast<int>(slot);
}

void stray(const Core *core, const void *from, uint64_t bytes, bool write) {
    int64_t offset = 0;
    int parameter = parameter_of(reinterpret_cast<uint64_t>(from), offset);
    if (parameter < 0 || write) {
        auto text = text_of("%s of %llu bytes at byte %lld of parameter %d, which has %llu bytes",
                            write ? "write" : "read", (unsigned long long)bytes, (long long)offset, parameter,
                            parameter < 0 ? 0ull : (unsigned long long)parameters[parameter].size);
        fault(core, parameter < 0 ? "signal" : "stray-write", text.c_str());
    }
    std::lock_guard lock(mutex);
    if (!std::exchange(noted[{core->line, "parameter " + std::to_string(parameter)}], true))
        say(text_of(
            R"({"event": "stray-read", "line": %d, "core": "%s", "parameter": %d, "offset": %lld, "bytes": %llu})",
            core->line, name_of(*core), parameter, (long long)offset, (unsigned long long)bytes));
}

// --- scheduler; everything below holds `mutex` ----------------------------------------------------------------------

void run(Seat &seat) {
    seat.state = State::running;
    running++;
    seat.turn.notify_one();
}

[[noreturn]] void report_stuck(const char *kind, const std::string &text) {
    std::string cores;
    int shown = 0;
    for (auto &block : blocks)
        for (auto &seat : block->seats) {
            if (seat->state == State::idle || seat->state == State::done || shown++ == 24) continue;
            std::string unread;
            for (int flag = 0; flag < flag_count; flag++)
                if (seat->incoming[flag]) unread += text_of(unread.empty() ? "%d" : ", %d", flag);
            cores += text_of(R"(%s{"core": "%s", "line": %d, "flag": %d, "unread": [%s]})", cores.empty() ? "" : ", ",
                             name_of(seat->core), seat->core.line, seat->state == State::blocked ? seat->wanted : -1,
                             unread.c_str());
        }
    say(text_of(R"({"event": "fault", "kind": "%s", "line": 0, "core": "", "text": "%s", "cores": [)", kind,
                text.c_str()) +
        cores + "]}");
    leave(3);
}

void serve(Seat &seat);

// Gives a block to idle seats, or to new ones.
void start_block() {
    Block *block = nullptr;
    for (auto &candidate : blocks)
        if (!candidate->live) block = candidate.get();
    if (!block) {
        block = blocks.emplace_back(std::make_unique<Block>()).get();
        for (auto [kind, sub] : {std::pair(vector, 0u), std::pair(vector, 1u), std::pair(cube, 0u)}) {
            if (!entries[kind]) continue;
            auto &seat = *block->seats.emplace_back(std::make_unique<Seat>());
            seat.core.kind = kind;
            seat.core.sub = sub;
            for (uint32_t m = 0; m < memory_count; m++) {
                bool has = (m == UB) == (kind == vector);
                seat.core.memory[m].size = plan.memory[m];
                if (!has) continue;
                uint64_t size = (plan.memory[m] + page - 1) / page * page;
                auto *map = static_cast<uint8_t *>(
                    mmap(nullptr, size + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
                if (map == MAP_FAILED || mprotect(map + guard, size, PROT_READ | PROT_WRITE))
                    fault(nullptr, "memory", "no memory for a core's on-chip buffers");
                seat.core.memory[m].base = map + guard + size - plan.memory[m];
            }
            seat.thread = std::thread(serve, std::ref(seat));
        }
    }
    std::memset(block->pair, 0, sizeof block->pair);
    block->live = true;
    block_at[next_block] = block;
    for (auto &seat : block->seats) {
        seat->core.block = next_block;
        seat->core.line = 0;
        std::memset(seat->incoming, 0, sizeof seat->incoming);
        seat->state = State::ready;
    }
    next_block++;
}

// Lets cores run while there are both host threads and cores that can.
void dispatch() {
    while (running < plan.threads) {
        Seat *next = nullptr;
        unsigned live = 0;
        for (auto &block : blocks) {
            if (!block->live) continue;
            live++;
            bool busy = false;
            for (auto &seat : block->seats) busy |= seat->state == State::running;
            if (busy || next) continue;
            for (auto &seat : block->seats)
                if (!next && seat->state == State::ready) next = seat.get();
        }
        if (next)
            run(*next);
        else if (next_block < block_count && (live < plan.threads || (chip_wide && !running)))
            start_block();
        else if (running || (!live && next_block == block_count))
            break;
        else
            report_stuck("deadlock", "every core that has not finished waits for a signal that nobody sends");
    }
    if (!running) {
        over = true;
        finished.notify_one();
    }
}

void serve(Seat &seat) {
    current = &seat.core;
    std::unique_lock lock(mutex);
    for (;;) {
        seat.turn.wait(lock, [&] { return seat.state == State::running; });
        lock.unlock();
        for (auto &memory : seat.core.memory)
            if (memory.base) std::fill_n(reinterpret_cast<uint64_t *>(memory.base), memory.size / 8, poison);
        entries[seat.core.kind](&seat.core, values.data());
        lock.lock();
        seat.state = State::done;
        running--;
        Block *block = block_at[seat.core.block];
        bool live = false;
        for (auto &other : block->seats) live |= other->state != State::done;
        block->live = live;
        dispatch();
    }
}

// A signal reaches a core.
void deliver(Seat &seat, int flag) {
    if (seat.state == State::done) return;
    if (++seat.incoming[flag] == flag_limit + 1) {
        auto text = text_of("flag %d was set more than %d times before it was waited for", flag, flag_limit);
        if (!std::exchange(noted[{current->line, text}], true))
            say(text_of(R"({"event": "note", "line": %d, "core": "%s", "text": "%s"})", current->line,
                        name_of(*current), text.c_str()));
    }
    if (seat.state == State::blocked && seat.wanted == flag) seat.state = State::ready;
}

Seat *seat_of(Block &block, Kind kind, uint32_t sub) {
    for (auto &seat : block.seats)
        if (seat->core.kind == kind && seat->core.sub == sub) return seat.get();
    return nullptr;
}

// Signals of the cores of one group: when each has sent one, all receivers get one.
void deliver_to(Block &block, Kind kind, uint32_t sub, int flag) {
    if (Seat *seat = seat_of(block, kind, sub)) deliver(*seat, flag);
}

void cross_set(Core *core, int32_t mode, int32_t flag) {
    std::lock_guard lock(mutex);
    Block &block = *block_at[core->block];
    if (mode == 0) {  // all cores of a kind, all blocks
        chip_wide = true;
        uint32_t per_block = core->kind == vector ? 2 : 1;
        auto &counts = arrived[core->kind][flag];
        counts.resize(static_cast<size_t>(block_count) * per_block);
        counts[core->block * per_block + core->sub]++;
        for (int count : counts)
            if (!count) return;
        for (size_t i = 0; i < counts.size(); i++) {
            counts[i]--;
            if (Block *other = block_at[i / per_block])
                deliver_to(*other, static_cast<Kind>(core->kind), static_cast<uint32_t>(i % per_block), flag);
        }
    } else if (mode == 3) {  // A5: the cube's flags 16 and up belong to vector core 1
        if (core->kind == cube)
            deliver_to(block, vector, flag / 16, flag % 16);
        else
            deliver_to(block, cube, 0, flag + 16 * static_cast<int>(core->sub));
    } else if (core->kind == cube) {  // mode 2: to both vector cores
        deliver_to(block, vector, 0, flag);
        deliver_to(block, vector, 1, flag);
    } else {  // mode 1: both vector cores to both; mode 2: both to the cube
        auto &pair = block.pair[mode];
        pair[core->sub][flag]++;
        if (!pair[0][flag] || !pair[1][flag]) return;
        pair[0][flag]--, pair[1][flag]--;
        if (mode == 2) return deliver_to(block, cube, 0, flag);
        deliver_to(block, vector, 0, flag);
        deliver_to(block, vector, 1, flag);
    }
}

void cross_wait(Core *core, int32_t flag) {
    std::unique_lock lock(mutex);
    Seat &seat = *seat_of(*block_at[core->block], static_cast<Kind>(core->kind), core->sub);
    if (!seat.incoming[flag]) {
        seat.state = State::blocked;
        seat.wanted = flag;
        running--;
        dispatch();
        seat.turn.wait(lock, [&] { return seat.state == State::running; });
    }
    seat.incoming[flag]--;
}

// --- process --------------------------------------------------------------------------------------------------------

void on_signal(int number, siginfo_t *info, void *) {
    signal(SIGABRT, SIG_DFL);
    alarm(5);  // should the report itself hang
    bool memory = number == SIGSEGV || number == SIGBUS;
    uint64_t address = reinterpret_cast<uint64_t>(info->si_addr);
    int64_t offset = 0;
    int parameter = memory ? parameter_of(address, offset) : -1;
    if (parameter >= 0)
        fault(current, "stray-write",
              text_of("scalar access at byte %lld of parameter %d, which has %llu bytes", (long long)offset, parameter,
                      (unsigned long long)parameters[parameter].size)
                  .c_str());
    for (uint32_t m = 0; current && memory && m < memory_count; m++) {
        const Region &region = current->memory[m];
        uint64_t base = reinterpret_cast<uint64_t>(region.base);
        if (base && address >= base - guard && address < base + region.size + guard)
            fault(current, "on-chip",
                  text_of("%s: access at offset %lld of %llu bytes", memory_names[m], (long long)(address - base),
                          (unsigned long long)region.size)
                      .c_str());
    }
    if (current && memory && address < (1 << 20))
        fault(current, "on-chip",
              text_of("access to an on-chip memory that a %s core does not have (offset %llu)",
                      kind_names[current->kind], (unsigned long long)address)
                  .c_str());
    fault(current, "signal", strsignal(number));
}

// The order of the lines is that of run.py: report, tensors, libraries ("-": none), threads, limit, whether A5, sizes
// of the on-chip memories, then each argument as "tensor OFFSET BYTES" or "scalar VALUE".
void read_plan(const char *path) {
    std::ifstream file(path);
    for (auto *text : {&plan.report, &plan.tensors, &plan.library[cube], &plan.library[vector]})
        std::getline(file, *text);
    file >> plan.threads >> plan.limit >> plan.a5;
    for (auto &size : plan.memory) file >> size;
    for (std::string word; file >> word;) {
        Argument argument{word == "tensor", 0, 0, 0};
        if (argument.tensor)
            file >> argument.offset >> argument.size;
        else
            file >> argument.value;
        plan.arguments.push_back(argument);
    }
}

// Largest memory of this process so far; getrusage would count what the parent had when it forked.
long peak_kib() {
    std::ifstream file("/proc/self/status");
    for (std::string word; file >> word;)
        if (long size = 0; word == "VmHWM:" && file >> size) return size;
    return 0;
}

// Maps each tensor into the middle of a slot of its own, its end on the end of a page: a scalar access past the end
// faults at once, and any address in the slot is known to come from this parameter.
void map_tensors() {
    int file = open(plan.tensors.c_str(), O_RDWR);
    uint64_t count = 0;
    for (auto &argument : plan.arguments) count += argument.tensor;
    uint8_t *slots = nullptr;
    uint32_t bits = 36;
    for (; bits > 30; bits -= 3) {  // smaller slots where the address space is limited
        void *map = mmap(nullptr, std::max<uint64_t>(count, 1) << bits, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED) continue;
        slots = static_cast<uint8_t *>(map);
        break;
    }
    if (file < 0 || !slots) fault(nullptr, "memory", "no address space for the tensors");
    for (auto &argument : plan.arguments) {
        if (!argument.tensor) {
            values.push_back(argument.value);
            continue;
        }
        uint8_t *at = slots + (static_cast<uint64_t>(parameters.size()) << bits) + (1ull << (bits - 1));
        uint64_t size = (argument.size + page - 1) / page * page;
        if (size && mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                         static_cast<off_t>(argument.offset)) == MAP_FAILED)
            fault(nullptr, "memory", "a tensor could not be mapped");
        std::memset(at, 0xe5, size - argument.size);
        parameters.push_back({at + size - argument.size, argument.size});
        values.push_back(reinterpret_cast<uint64_t>(parameters.back().base));
    }
    host.slots = reinterpret_cast<uint64_t>(slots);
    host.slot_bits = bits;
    host.parameters = parameters.data();
    host.parameter_count = static_cast<uint32_t>(parameters.size());
}

void load_library(Kind kind, Grid &grid) {
    if (plan.library[kind] == "-") return;
    void *library = dlopen(plan.library[kind].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::exit(2);
    }
    reinterpret_cast<Bind>(dlsym(library, "vnpu_bind"))(&host);
    entries[kind] = reinterpret_cast<Entry>(dlsym(library, "vnpu_entry"));
    grid = reinterpret_cast<Grid>(dlsym(library, "vnpu_grid"));
}

}  // namespace

int main(int count, char **words) {
    if (count != 2) return 2;
    read_plan(words[1]);
    report = std::fopen(plan.report.c_str(), "w");
    if (!report) return 2;
    struct sigaction action{};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO;
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(number, &action, nullptr);

    map_tensors();
    host.a5 = plan.a5;
    host.cross_set = cross_set;
    host.cross_wait = cross_wait;
    host.fault = fault;
    host.stray = stray;
    host.note = note;
    Grid grid = nullptr;
    load_library(cube, grid);
    load_library(vector, grid);
    if (!grid) return 2;
    host.block_count = block_count = static_cast<uint32_t>(grid(values.data()));
    block_at.resize(block_count);

    auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex);
    dispatch();
    if (!finished.wait_for(lock, std::chrono::duration<double>(plan.limit), [] { return over; })) {
        report_stuck("time", text_of("not finished after %g s; %u of %u blocks were started", plan.limit, next_block,
                                     block_count));
    }
    for (size_t i = 0, t = 0; i < plan.arguments.size(); i++) {
        if (!plan.arguments[i].tensor) continue;
        const Parameter &parameter = parameters[t++];
        for (uint64_t back = 1; back <= (page - parameter.size % page) % page; back++)
            if (parameter.base[-static_cast<int64_t>(back)] != 0xe5)
                fault(nullptr, "stray-write",
                      text_of("scalar write at byte -%llu of parameter %zu", (unsigned long long)back, t - 1).c_str());
    }
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    say(text_of(R"({"event": "done", "seconds": %.6f, "blocks": %u, "peak_kib": %ld})", seconds, block_count,
                peak_kib()));
    leave(0);
}
