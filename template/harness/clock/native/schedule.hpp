// Event-driven scheduler. A core issues its stream in order; its pipes run side by side, each in order; flags, barriers
// and cross-core flags order them. Times are in cycles of the AI core's clock.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "event.hpp"

namespace vclock {

constexpr int ROUTES = 14;
// PipeKey -> pipe. L1 is filled by the engine that loads it.
constexpr uint8_t pipe_of_route[ROUTES] = {V, M, MTE2, MTE2, MTE3, MTE3, V, FIX, FIX, MTE1, MTE1, MTE1, FIX, MTE2};
constexpr bool is_transfer(int route) { return route >= 2; }

struct Machine {
    double issue = 1;              // scalar cycles to issue an instruction, a flag or a barrier
    double cross = 0;              // from a cross-core set to its visibility on the other core
    double launch = 0;             // before the first instruction of a block
    double latency[ROUTES] = {};   // from the end of a transfer's occupancy to its data being there
    // A transfer takes the recorded cycles (its bytes at the sustained rate), but not less than start + bytes / rate.
    double start[ROUTES] = {};
    double rate[ROUTES] = {};      // bytes per cycle; 0: no such bound
};

constexpr int32_t NONE = -1;

// When something happens, and the node that made it happen then.
struct Stamp {
    double time = 0;
    int32_t node = NONE;
    void wait_for(const Stamp &other)
    {
        if (other.time > time) *this = other;
    }
};

// One instruction that ran: kept for the timeline and the critical path.
struct Node {
    double start, end, done;   // occupies its pipe until end, its result is there at done
    int32_t cause;             // the node that it waited for
    uint32_t kind;             // index into the kinds of its core's trace
    uint8_t core, pipe;
};

struct Queue {   // of times, first in first out
    std::vector<Stamp> items;
    size_t head = 0;
    bool empty() const { return head == items.size(); }
    Stamp pop()
    {
        Stamp s = items[head++];
        if (head == items.size()) items.clear(), head = 0;
        return s;
    }
};

struct Core {
    Trace trace{};
    int block = 0, role = 0;   // role 0: cube, 1 and 2: vector
    size_t next = 0;
    Stamp issued;              // the scalar unit's time
    std::array<Stamp, PIPES> free, done;
    std::array<double, PIPES> busy{};
    std::array<double, ROUTES> bytes{};
    std::array<Queue, PIPES * PIPES * 8> flags;
    std::array<std::vector<uint32_t>, PIPES> waiting;   // what a pipe that waits for a flag has still to do
    std::array<Queue, 32> cross;                        // mode 2; the cube keeps 16 per vector core
    std::array<size_t, 16> met{};                       // barriers (modes 0 and 1) passed, per flag
    std::array<int, 16> meeting{};                      // mode of a flag's pending barrier + 1
    uint64_t instructions = 0;
    bool halted = false;                                // waits for a flag that only itself could set

    const Event &event(uint32_t kind) const { return trace.kinds[kind]; }
    bool finished() const { return next == trace.length; }
};

class Schedule {
public:
    Schedule(const Machine &machine, std::vector<Core> &cores, size_t node_limit)
        : machine(machine), cores(cores), node_limit(node_limit)
    {
        for (Core &core : cores) core.issued.time = machine.launch;
        arrivals.resize(cores.size());
    }

    std::vector<Node> nodes;

    // Cycles until the last core is done. Look at `stuck` afterwards.
    double run()
    {
        size_t total = 0;
        for (const Core &core : cores) total += core.trace.length;
        nodes.reserve(std::min(total, node_limit));
        for (bool progress = true; progress;) {
            progress = false;
            for (size_t i = 0; i < cores.size(); ++i) progress |= advance(int(i));
        }
        double span = 0;
        for (size_t i = 0; i < cores.size(); ++i) {
            Core &core = cores[i];
            Stamp end = core.issued;
            for (int p = 0; p < PIPES; ++p) end.wait_for(core.done[p]);
            if (end.time > span) span = end.time, last = end;
        }
        return span;
    }

    Stamp last;   // the end of the run

    // For every core that never ended: what it waits for.
    std::vector<std::pair<int, Event>> stuck() const
    {
        std::vector<std::pair<int, Event>> out;
        for (size_t i = 0; i < cores.size(); ++i) {
            const Core &core = cores[i];
            bool found = false;
            for (const auto &list : core.waiting)
                if (!list.empty()) out.push_back({int(i), core.event(list.front())}), found = true;
            if (!found && !core.finished()) out.push_back({int(i), core.event(core.trace.stream[core.next])});
        }
        return out;
    }

private:
    const Machine &machine;
    std::vector<Core> &cores;
    size_t node_limit;
    std::vector<std::array<std::vector<Stamp>, 16>> arrivals;   // at barriers, per core and flag

    bool advance(int index)
    {
        Core &core = cores[index];
        const size_t before = core.next;
        while (!core.halted && core.next < core.trace.length) {
            const uint32_t kind = core.trace.stream[core.next];
            if (!step(core, index, kind)) break;
            ++core.next;
        }
        return core.next != before;
    }

    // False: the scalar unit has to wait for another core (try again later) or is halted.
    bool step(Core &core, int index, uint32_t kind)
    {
        const Event &e = core.event(kind);
        switch (e.what) {
        case What::Instruction: enqueue(core, index, pipe_of_route[e.route], kind); return true;
        case What::SetFlag: enqueue(core, index, e.a, kind); return true;
        case What::WaitFlag: enqueue(core, index, e.b, kind); return !core.halted;
        case What::CrossSet: enqueue(core, index, e.a, kind); return true;
        case What::Barrier:
            core.issued.time += machine.issue;
            if (e.a != ALL) {
                enqueue(core, index, e.a, kind);
                return true;
            }
            for (int p = 0; p < PIPES; ++p) {
                if (!core.waiting[p].empty()) return halt(core);
                core.issued.wait_for(core.done[p]);
                core.issued.wait_for(core.free[p]);
            }
            return true;
        case What::CrossWait: return cross_wait(core, index, e.a & 15);
        case What::Scalar:
            core.issued.time += e.cycles;
            core.busy[S] += e.cycles;
            return true;
        }
        return true;
    }

    bool halt(Core &core)
    {
        core.halted = true;
        return false;
    }

    void enqueue(Core &core, int index, int pipe, uint32_t kind)
    {
        const Event &e = core.event(kind);
        if (e.what != What::Barrier) core.issued.time += machine.issue;
        if (!core.waiting[pipe].empty()) {
            core.waiting[pipe].push_back(kind);
            if (pipe == S) core.halted = true;
            return;
        }
        perform(core, index, pipe, kind);
    }

    // The pipe does one thing from its queue; if that is to wait for a flag not yet set, the queue stays.
    bool perform(Core &core, int index, int pipe, uint32_t kind)
    {
        const Event &e = core.event(kind);
        Stamp ready = core.free[pipe];
        ready.wait_for(core.issued);
        switch (e.what) {
        case What::Instruction: instruct(core, index, pipe, kind, e, ready); break;
        case What::SetFlag: {
            Stamp at = pipe == S ? core.issued : ready;
            if (pipe != S) at.wait_for(core.done[pipe]);
            const int flag = (e.a * PIPES + e.b) * 8 + (e.c & 7);
            core.flags[flag].items.push_back(at);
            release(core, index, e.b);
            break;
        }
        case What::WaitFlag: {
            Queue &queue = core.flags[(e.a * PIPES + e.b) * 8 + (e.c & 7)];
            if (queue.empty()) {
                core.waiting[pipe].push_back(kind);
                if (pipe == S) core.halted = true;
                return false;
            }
            const Stamp at = queue.pop();
            if (pipe == S) core.issued.wait_for(at);
            else core.free[pipe].wait_for(at);
            break;
        }
        case What::Barrier: core.free[pipe].wait_for(core.done[pipe]); break;
        case What::CrossSet: {
            Stamp at = ready;
            if (pipe != S) at.wait_for(core.done[pipe]);
            at.time += machine.cross;
            cross_set(core, index, e.b, at);
            break;
        }
        default: break;
        }
        return true;
    }

    void instruct(Core &core, int index, int pipe, uint32_t kind, const Event &e, Stamp ready)
    {
        double cycles = e.cycles;
        if (is_transfer(e.route)) {
            if (machine.rate[e.route] > 0) cycles = std::max(cycles, machine.start[e.route] + e.bytes / machine.rate[e.route]);
        } else if (ready.time >= core.done[pipe].time) {
            cycles += e.head;   // the pipe ran dry
        }
        const double end = ready.time + cycles;
        const double done = end + (is_transfer(e.route) ? machine.latency[e.route] : e.tail);
        const int32_t node = nodes.size() < node_limit ? int32_t(nodes.size()) : NONE;
        if (node != NONE) nodes.push_back({ready.time, end, done, ready.node, kind, uint8_t(index), uint8_t(pipe)});
        core.free[pipe] = {end, node};
        if (done >= core.done[pipe].time) core.done[pipe] = {done, node};
        core.busy[pipe] += cycles;
        core.bytes[e.route] += e.bytes;
        ++core.instructions;
    }

    void release(Core &core, int index, int pipe)
    {
        auto &list = core.waiting[pipe];
        if (list.empty()) return;
        std::vector<uint32_t> todo;
        todo.swap(list);
        for (size_t i = 0; i < todo.size(); ++i)
            if (!perform(core, index, pipe, todo[i])) {
                core.waiting[pipe].insert(core.waiting[pipe].end(), todo.begin() + long(i) + 1, todo.end());
                return;
            }
    }

    void cross_set(Core &core, int index, int message, Stamp at)
    {
        const int mode = message >> 4 & 3, flag = message >> 8 & 15;
        if (mode == 2) {
            for (Core &other : cores)
                if (other.block == core.block && (other.role == 0) != (core.role == 0)) {
                    const int slot = core.role == 0 ? flag : 16 * (core.role - 1) + flag;
                    other.cross[slot].items.push_back(at);
                }
        } else {   // a barrier: mode 0 all cores of the kind, mode 1 the vector cores of the block
            arrivals[index][flag].push_back(at);
            core.meeting[flag] = mode + 1;
        }
    }

    bool cross_wait(Core &core, int index, int flag)
    {
        Stamp at;
        if (core.meeting[flag]) {
            const bool all = core.meeting[flag] == 1;
            const size_t turn = core.met[flag];
            for (size_t i = 0; i < cores.size(); ++i) {
                const Core &other = cores[i];
                if ((other.role == 0) != (core.role == 0) || (!all && other.block != core.block)) continue;
                if (arrivals[i][flag].size() <= turn) return false;
                at.wait_for(arrivals[i][flag][turn]);
            }
            if (++core.met[flag] == arrivals[index][flag].size()) core.meeting[flag] = 0;
        } else if (core.role == 0) {
            Queue &first = core.cross[flag], &second = core.cross[16 + flag];
            if (first.empty() || second.empty()) return false;
            at = first.pop();
            at.wait_for(second.pop());
        } else {
            if (core.cross[flag].empty()) return false;
            at = core.cross[flag].pop();
        }
        core.issued.time += machine.issue;
        core.issued.wait_for(at);
        return true;
    }
};

} // namespace vclock
