// What a simulated core and the program that drives it know of each other.
//
// A kernel is built as one shared library per kind of core (cube, vector); the driver is a program of its own.
// They meet only here, in plain C structures, so they may be built by different compilers or runtimes.
#pragma once
#include <cstdint>

namespace vnpu {

enum Kind : uint32_t { cube, vector };

// On-chip memories in the order of `Core::memory`; sizes come from the driver, which knows the chip.
enum Memory : uint32_t { UB, L1, L0A, L0B, L0C, bias_table, fixpipe_buffer, memory_count };

struct Region {
    uint8_t *base;  // null where this kind of core does not have the memory
    uint64_t size;  // bytes
};

struct Core {
    uint32_t block, kind, sub;  // sub: which of the two vector cores of the block
    volatile int32_t line;      // statement of the generated source that runs now, counted from 1
    Region memory[memory_count];
};

// A tensor or workspace in global memory. Each lies in a slot of the address space of its own, so that an address
// that strayed still tells which parameter it came from.
struct Parameter {
    uint8_t *base;
    uint64_t size;
};

struct Host {
    uint32_t parameter_count, slot_bits;
    uint64_t slots;  // first address of the first slot
    const Parameter *parameters;
    uint32_t block_count;
    bool a5;

    void (*cross_set)(Core *, int32_t mode, int32_t flag);  // modes of ffts_cross_core_sync; 3: A5's intra-block flags
    void (*cross_wait)(Core *, int32_t flag);
    // Ends the run. `kind` is a stable word for programs, the rest is prose for people.
    void (*fault)(const Core *, const char *kind, const char *text);
    // Global memory touched outside of its parameter. Ends the run when it was a write.
    void (*stray)(const Core *, const void *from, uint64_t bytes, bool write);
    // Legal here, wrong or risky on the device; kept once per statement.
    void (*note)(const Core *, const char *text);
};

// Exported by a kernel library. `poison` has been applied to the core's memories by the driver.
using Bind = void (*)(const Host *);
using Entry = void (*)(Core *, const uint64_t *arguments);
using Grid = uint64_t (*)(const uint64_t *arguments);

}  // namespace vnpu
