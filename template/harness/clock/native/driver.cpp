// Traces the blocks of a kernel built in cost-model mode, schedules them, and prints what came out as JSON.
// Reads its orders from standard input, one per line; see clock/trace.py.
#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <queue>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "schedule.hpp"

using namespace vclock;

namespace {

using Entry = void (*)(const uint64_t *, const Order *, Trace *);

struct Orders {
    Entry entry[2] = {nullptr, nullptr};   // cube, vector
    uint32_t blocks = 1, cores = 1, jobs = 1, vector_broadcast = 0;
    uint64_t budget = 4'000'000;           // events to trace before blocks are sampled
    uint64_t limit = 40'000'000;           // events of one core
    uint64_t node_limit = 2'000'000;
    std::vector<uint64_t> arguments;
    Machine machine;
    std::string timeline;
};

[[noreturn]] void fail(const std::string &kind, const std::string &text)
{
    static std::mutex once;   // several threads may fail: the first one speaks
    once.lock();
    std::string quoted;
    for (char c : text) {
        if (c == '"' || c == '\\') quoted += '\\';
        quoted += c == '\n' ? ' ' : c;
    }
    std::printf("{\"error\": \"%s\", \"message\": \"%s\"}\n", kind.c_str(), quoted.c_str());
    std::fflush(stdout);
    std::_Exit(0);
}

// Zeros that cost nothing until they are read, with unreadable pages around them.
uint64_t global_memory(uint64_t bytes, const std::string &file)
{
    constexpr uint64_t guard = 1u << 20, page = 4096;
    const uint64_t size = (bytes + page - 1) / page * page;
    auto *base = static_cast<char *>(mmap(nullptr, size + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base == MAP_FAILED || mprotect(base + guard, size, PROT_READ | PROT_WRITE)) fail("memory", "cannot map " + std::to_string(bytes) + " bytes");
    if (!file.empty()) std::ifstream(file, std::ios::binary).read(base + guard, std::streamsize(bytes));
    return uint64_t(base + guard);
}

Orders read_orders()
{
    Orders orders;
    std::string line;
    while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        std::string what, name, rest;
        words >> what;
        if (what == "library") {
            words >> name >> std::ws;
            std::getline(words, rest);
            void *library = dlopen(rest.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (!library) fail("library", dlerror());
            orders.entry[name == "vector"] = reinterpret_cast<Entry>(dlsym(library, "vclock_trace"));
        } else if (what == "blocks") words >> orders.blocks;
        else if (what == "cores") words >> orders.cores;
        else if (what == "jobs") words >> orders.jobs;
        else if (what == "budget") words >> orders.budget;
        else if (what == "limit") words >> orders.limit;
        else if (what == "tensor") {
            uint64_t bytes;
            words >> bytes >> std::ws;
            std::getline(words, rest);
            orders.arguments.push_back(global_memory(bytes, rest));
        } else if (what == "scalar") {
            int64_t value;
            words >> value;
            orders.arguments.push_back(uint64_t(value));
        } else if (what == "vector_broadcast") words >> orders.vector_broadcast;
        else if (what == "issue") words >> orders.machine.issue;
        else if (what == "cross") words >> orders.machine.cross;
        else if (what == "launch") words >> orders.machine.launch;
        else if (what == "transfer") {
            int route;
            double start, rate, latency;
            words >> route >> start >> rate >> latency;
            if (route < 0 || route >= ROUTES) fail("orders", "no such route: " + line);
            orders.machine.start[route] = start;
            orders.machine.rate[route] = rate;
            orders.machine.latency[route] = latency;
        } else if (what == "timeline") {
            words >> std::ws;
            std::getline(words, orders.timeline);
        } else if (!what.empty()) fail("orders", "unknown order: " + line);
    }
    return orders;
}

// The three streams of one block, copied out of the recorder, which keeps only the last one.
struct Block {
    std::vector<Event> kinds[3];
    std::vector<uint32_t> stream[3];
    std::set<std::string> silent;   // instructions without a recorded event

    uint64_t events() const { return stream[0].size() + stream[1].size() + stream[2].size(); }

    bool meets_all() const
    {
        for (const auto &list : kinds)
            for (const Event &e : list)
                if (e.what == What::CrossSet && (e.b >> 4 & 3) == 0) return true;
        return false;
    }
};

Block trace(const Orders &orders, uint32_t number)
{
    Block block;
    for (uint32_t role = 0; role < 3; ++role) {
        const Entry entry = orders.entry[role > 0];
        if (!entry) continue;
        Trace t{};
        const Order order{number, role == 2, orders.blocks, role == 0, orders.vector_broadcast, orders.limit};
        entry(orders.arguments.data(), &order, &t);
        if (t.overflow) fail("large", "block " + std::to_string(number) + " runs more than " + std::to_string(orders.limit) + " instructions on one core");
        block.kinds[role].assign(t.kinds, t.kinds + t.kind_count);
        block.stream[role].assign(t.stream, t.stream + t.length);
        std::istringstream names(t.silent);
        for (std::string name; names >> name;) block.silent.insert(name);
    }
    return block;
}

// An instruction that never records anything costs something that the model does not know. (One may well record
// nothing in some block: no rows there.)
class Gaps {
public:
    void add(const Block &block)
    {
        const std::lock_guard lock(mutex);
        silent.insert(block.silent.begin(), block.silent.end());
        for (const auto &list : block.kinds)
            for (const Event &e : list)
                if (e.instruction && is_cost(e.what)) costed.insert(e.instruction);
    }
    void check() const
    {
        std::string names;
        for (const std::string &name : silent)
            if (!costed.count(name)) names += name + ' ';
        if (!names.empty()) fail("uncosted", names);
    }

private:
    std::mutex mutex;
    std::set<std::string> silent, costed;
};

void add_cores(std::vector<Core> &cores, const Block &block, int number)
{
    for (int role = 0; role < 3; ++role) {
        Core core;
        core.block = number;
        core.role = role;
        core.trace = {block.kinds[role].data(), block.kinds[role].size(), block.stream[role].data(), block.stream[role].size(), "", 0};
        cores.push_back(std::move(core));
    }
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Result {
    double span = 0, took = 0;                         // took: seconds of scheduling
    std::array<std::array<double, PIPES>, 2> busy{};   // of the cube core and of a vector core, in cycles
    std::array<double, ROUTES> bytes{};
    uint64_t instructions = 0, events = 0;
};

Result summarise(const std::vector<Core> &cores, double span, uint64_t events)
{
    Result r;
    r.span = span;
    r.events = events;
    for (const Core &core : cores) {
        for (int p = 0; p < PIPES; ++p) r.busy[core.role > 0][size_t(p)] += core.busy[size_t(p)] / (core.role > 0 ? 2 : 1);
        for (int route = 0; route < ROUTES; ++route) r.bytes[size_t(route)] += core.bytes[size_t(route)];
        r.instructions += core.instructions;
    }
    return r;
}

void check(const Schedule &schedule, const std::vector<Core> &cores)
{
    const auto stuck = schedule.stuck();
    if (stuck.empty()) return;
    std::ostringstream out;
    for (const auto &[index, e] : stuck) {
        const Core &core = cores[size_t(index)];
        out << core.block << ' ' << core.role << ' ' << e.line << ' ' << e.intrinsic << ' ' << e.a << ' ' << e.b << ' ' << e.c << ';';
        if (out.str().size() > 4000) break;
    }
    fail("deadlock", out.str());
}

// What the last event waited for, and that, back to the start: cycles per (role, pipe, kind).
struct Path {
    std::map<std::pair<int, int>, double> share;
    std::map<std::tuple<int, int, uint32_t>, double> lines;
    double scalar = 0, cross = 0, launch = 0, length = 0;
};

Path critical_path(const Schedule &schedule, const std::vector<Core> &cores, double cross, double launch)
{
    Path path;
    Stamp at = schedule.last;
    if (at.node == NONE)
        for (size_t i = 0; i < schedule.nodes.size(); ++i)
            if (schedule.nodes[i].done > (at.node == NONE ? 0 : schedule.nodes[size_t(at.node)].done)) at = {schedule.nodes[i].done, int32_t(i)};
    path.length = at.time;
    double time = at.time;
    while (at.node != NONE) {
        const Node &n = schedule.nodes[size_t(at.node)];
        const int role = cores[n.core].role;
        const double late = std::max(0.0, time - n.done);   // after the node's result: scalar issue, or a flag on its way
        if (late > 0) (cross > 0 && late >= cross ? path.cross : path.scalar) += late;
        path.share[{role, n.pipe}] += std::min(time, n.done) - n.start;
        path.lines[{role, n.pipe, n.kind}] += std::min(time, n.done) - n.start;
        time = n.start;
        at.node = n.cause;
    }
    path.launch = std::min(launch, time);
    path.scalar += time - path.launch;
    return path;
}

struct Row {   // of the timeline file
    double start, end;
    int32_t kind;
    uint8_t role, pipe, pad[2];
};

void print_kinds(const std::vector<Event> (&kinds)[3])
{
    std::printf("\"kinds\": [");
    for (int role = 0; role < 3; ++role) {
        std::printf("%s[", role ? ", " : "");
        for (size_t i = 0; i < kinds[role].size(); ++i) {
            const Event &e = kinds[role][i];
            std::printf("%s[\"%s\", \"%s\", %u, %u]", i ? ", " : "", e.intrinsic, e.instruction ? e.instruction : "", e.line, e.bytes);
        }
        std::printf("]");
    }
    std::printf("]");
}

} // namespace

int main()
{
    const Orders orders = read_orders();
    Block first = trace(orders, 0);
    Gaps gaps;
    gaps.add(first);
    const Machine &machine = orders.machine;

    std::vector<uint32_t> sample;
    std::vector<Result> results;
    const bool together = first.meets_all() && orders.blocks > 1;
    if (together) {
        if (orders.blocks > orders.cores) fail("deadlock", "-1 -1 0 sync_all 0 0 0;");
        if (first.events() * orders.blocks > 20 * orders.budget) fail("large", "blocks that synchronise with one another cannot be sampled");
        std::vector<Block> blocks;
        std::vector<Core> cores;
        uint64_t events = 0;
        for (uint32_t b = 0; b < orders.blocks; ++b) blocks.push_back(trace(orders, b)), gaps.add(blocks.back());
        for (uint32_t b = 0; b < orders.blocks; ++b) add_cores(cores, blocks[b], int(b)), events += blocks[b].events(), sample.push_back(b);
        Schedule schedule(machine, cores, 0);
        const double span = schedule.run();
        check(schedule, cores);
        for (uint32_t b = 0; b < orders.blocks; ++b) {
            std::vector<Core> own(cores.begin() + 3 * b, cores.begin() + 3 * b + 3);
            results.push_back(summarise(own, span, blocks[b].events()));
        }
    } else {
        const uint64_t most = std::max<uint64_t>(2, orders.budget / std::max<uint64_t>(1, first.events()));
        const uint32_t count = uint32_t(std::min<uint64_t>(orders.blocks, most));
        for (uint32_t i = 0; i < count; ++i)
            sample.push_back(count == 1 ? 0 : uint32_t(uint64_t(i) * (orders.blocks - 1) / (count - 1)));
        results.resize(count);
        std::atomic<uint32_t> next{0};
        auto work = [&] {
            for (uint32_t i; (i = next++) < count;) {
                const Block other = i ? trace(orders, sample[i]) : Block{};
                const Block &block = i ? other : first;
                gaps.add(block);
                std::vector<Core> cores;
                add_cores(cores, block, int(sample[i]));
                Schedule schedule(machine, cores, 0);
                const double start = seconds(), span = schedule.run();
                results[i] = summarise(cores, span, block.events());
                results[i].took = seconds() - start;
                check(schedule, cores);
            }
        };
        std::vector<std::thread> threads;
        for (uint32_t j = 1; j < std::min(orders.jobs, count); ++j) threads.emplace_back(work);
        work();
        for (std::thread &t : threads) t.join();
    }

    gaps.check();

    // Blocks go to whichever core is free first; a block that was not traced takes the time of its nearest neighbour.
    std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
    for (uint32_t c = 0; c < std::min(orders.cores, orders.blocks); ++c) free_at.push(0);
    double span = 0;
    Result total;
    for (uint32_t b = 0, i = 0; b < orders.blocks; ++b) {
        while (i + 1 < sample.size() && sample[i + 1] - b <= b - std::min(b, sample[i])) ++i;
        while (i + 1 < sample.size() && sample[i + 1] <= b) ++i;
        const Result &r = results[i];
        const double start = free_at.top();
        free_at.pop();
        free_at.push(start + r.span);
        span = std::max(span, start + r.span);
        for (int k = 0; k < 2; ++k)
            for (int p = 0; p < PIPES; ++p) total.busy[size_t(k)][size_t(p)] += r.busy[size_t(k)][size_t(p)];
        for (int route = 0; route < ROUTES; ++route) total.bytes[size_t(route)] += r.bytes[size_t(route)];
        total.instructions += r.instructions;
        total.events += r.events;
    }
    for (const Result &r : results) total.took += r.took;
    if (!total.instructions) fail("empty", "no instruction was recorded");

    // The slowest block once more (the first one where it is as slow), with everything kept.
    size_t slowest = 0;
    for (size_t i = 0; i < results.size(); ++i)
        if (results[i].span > 1.001 * results[slowest].span) slowest = i;
    const uint32_t shown = sample[slowest];
    std::vector<Block> kept;
    std::vector<Core> cores;
    if (together)
        for (uint32_t b = 0; b < orders.blocks; ++b) kept.push_back(trace(orders, b));
    else kept.push_back(slowest ? trace(orders, shown) : std::move(first));
    for (uint32_t b = 0; b < kept.size(); ++b) add_cores(cores, kept[b], int(together ? b : shown));
    Schedule schedule(machine, cores, orders.node_limit);
    schedule.run();
    const Path path = critical_path(schedule, cores, machine.cross, machine.launch);
    const Block &block = kept[together ? shown : 0];

    if (!orders.timeline.empty()) {
        std::ofstream out(orders.timeline, std::ios::binary);
        for (const Node &n : schedule.nodes) {
            const Core &core = cores[n.core];
            if (uint32_t(core.block) != shown) continue;
            const Row row{n.start, n.end, int32_t(n.kind), uint8_t(core.role), n.pipe, {}};
            out.write(reinterpret_cast<const char *>(&row), sizeof row);
        }
    }

    std::printf("{\"span\": %.1f, \"blocks\": %u, \"cores\": %u, \"traced\": %zu, \"together\": %s, \"events\": %llu, \"instructions\": %llu, ",
                span, orders.blocks, orders.cores, sample.size(), together ? "true" : "false",
                static_cast<unsigned long long>(total.events), static_cast<unsigned long long>(total.instructions));
    std::printf("\"scheduling\": %.6f, \"shown\": %u, \"durations\": [", total.took, shown);
    for (size_t i = 0; i < results.size(); ++i) std::printf("%s[%u, %.1f]", i ? ", " : "", sample[i], results[i].span);
    std::printf("], \"busy\": [");
    for (int k = 0; k < 2; ++k) {
        std::printf("%s[", k ? ", " : "");
        for (int p = 0; p < PIPES; ++p) std::printf("%s%.1f", p ? ", " : "", total.busy[size_t(k)][size_t(p)]);
        std::printf("]");
    }
    std::printf("], \"bytes\": [");
    for (int route = 0; route < ROUTES; ++route) std::printf("%s%.0f", route ? ", " : "", total.bytes[size_t(route)]);
    std::printf("], \"path\": {\"length\": %.1f, \"scalar\": %.1f, \"cross\": %.1f, \"launch\": %.1f, \"share\": [", path.length, path.scalar, path.cross, path.launch);
    const char *comma = "";
    for (const auto &[key, cycles] : path.share) std::printf("%s[%d, %d, %.1f]", comma, key.first, key.second, cycles), comma = ", ";
    std::printf("], \"lines\": [");
    comma = "";
    for (const auto &[key, cycles] : path.lines)
        std::printf("%s[%d, %d, %u, %.1f]", comma, std::get<0>(key), std::get<1>(key), std::get<2>(key), cycles), comma = ", ";
    std::printf("]}, ");
    print_kinds(block.kinds);
    std::printf("}\n");
    return 0;
}
