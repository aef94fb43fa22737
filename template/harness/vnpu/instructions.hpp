// Instructions whose version in the CPU headers departs from the device. Each states the device's rule; the source is
// the device implementation of the same instruction in the installed headers (pto/npu/a2a3) unless another is named.
#pragma once

namespace vnpu {

template <typename Tile> constexpr Memory memory_of() {
    using pto::TileType;
    constexpr TileType type = Tile::Loc;
    static_assert(type == TileType::Vec || type == TileType::Mat || type == TileType::Left || type == TileType::Right ||
                      type == TileType::Acc || type == TileType::Bias || type == TileType::Scaling,
                  "not simulated: tile in a microscaling buffer");
    return type == TileType::Vec     ? UB
           : type == TileType::Mat   ? L1
           : type == TileType::Left  ? L0A
           : type == TileType::Right ? L0B
           : type == TileType::Acc   ? L0C
           : type == TileType::Bias  ? bias_table
                                     : fixpipe_buffer;
}

inline const char *const memory_names[memory_count] = {"UB", "L1", "L0A", "L0B", "L0C", "bias table", "fixpipe buffer"};

// Memory that nobody wrote reads as NaN (0xffe5 in fp16 and bf16, twice that in fp32) or as a striking integer.
constexpr uint16_t poison = 0xffe5;
template <typename T> T poisoned() {
    uint64_t bits = 0x0001000100010001ull * poison;
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Valid sizes are unsigned in the headers although kernels compute them: a tail that ends before it begins is negative.
template <typename Tile> int rows_of(const Tile &tile) {
    return std::max(0, static_cast<int>(tile.GetValidRow()));
}
template <typename Tile> int cols_of(const Tile &tile) {
    return std::max(0, static_cast<int>(tile.GetValidCol()));
}
template <typename Tile> size_t at(int row, int col) {
    return pto::GetTileElementOffset<Tile>(static_cast<size_t>(row), static_cast<size_t>(col));
}

// Ends the run when `elements` of the tile, from its start, do not fit into its memory.
template <typename Tile> void check_fits(const Tile &tile, uint64_t elements) {
    const Region &region = core->memory[memory_of<Tile>()];
    uint64_t start = reinterpret_cast<uint64_t>(tile.data()) - reinterpret_cast<uint64_t>(region.base);
    uint64_t bytes = elements * sizeof(typename Tile::DType);
    if (start + bytes > region.size) {
        char text[160];
        std::snprintf(text, sizeof text, "%s: a tile at offset %llu needs %llu bytes, %llu past the end of %llu",
                      memory_names[memory_of<Tile>()], (unsigned long long)start, (unsigned long long)bytes,
                      (unsigned long long)(start + bytes - region.size), (unsigned long long)region.size);
        host->fault(core, "on-chip", text);
    }
}

// TASSIGN: the address is an offset into the tile's memory, or (for views) already a host address inside of it.
template <typename Target, typename Address> void assign(Target &target, Address address) {
    if constexpr (pto::is_tile_data_v<Target>) {
        const Region &region = core->memory[memory_of<Target>()];
        uint64_t offset = static_cast<uint64_t>(address), base = reinterpret_cast<uint64_t>(region.base);
        if (region.base && offset >= base && offset < base + region.size) offset -= base;
        target.data() = reinterpret_cast<typename Target::DType *>(base + offset);
        // Only the valid part is touched by instructions; a declared shape may reach past its buffer.
        int rows = rows_of(target), cols = cols_of(target);
        if (rows && cols) check_fits(target, at<Target>(rows - 1, cols - 1) + 1);
    } else {
        target.SetAddr(address);
    }
}

// --- global memory --------------------------------------------------------------------------------------------------

// The parameter whose slot holds the address; null for an address that is none of ours.
inline const Parameter *parameter_of(uint64_t address) {
    uint64_t slot = (address - host->slots) >> host->slot_bits;
    return address >= host->slots && slot < host->parameter_count ? host->parameters + slot : nullptr;
}

inline bool inside(const void *from, int64_t bytes) {
    const Parameter *parameter = parameter_of(reinterpret_cast<uint64_t>(from));
    auto *first = static_cast<const uint8_t *>(from);
    return parameter && first >= parameter->base && first + bytes <= parameter->base + parameter->size;
}

// A move between global memory and a tile, as runs of consecutive elements: rows for ND, columns for DN.
template <typename Global, typename Tile, typename Run> void for_each_run(Global &global, Run run) {
    static_assert(Global::layout == pto::Layout::ND || Global::layout == pto::Layout::DN,
                  "not simulated: TLOAD/TSTORE of a tensor that is not ND or DN");
    constexpr bool by_rows = Tile::SFractal != pto::SLayout::NoneBox || Tile::isRowMajor;
    int64_t shape[5], stride[5];
    for (int d = 0; d < 5; d++) {
        shape[d] = global.GetShape(d);
        stride[d] = global.GetStride(d);
        if (static_cast<int32_t>(shape[d]) <= 0) return;
    }
    constexpr int inner = by_rows ? 4 : 3, outer = by_rows ? 3 : 4;
    int index = 0;
    for (int64_t i = 0; i < shape[0]; i++)
        for (int64_t j = 0; j < shape[1]; j++)
            for (int64_t k = 0; k < shape[2]; k++)
                for (int64_t l = 0; l < shape[outer]; l++, index++)
                    run(index, global.data() + i * stride[0] + j * stride[1] + k * stride[2] + l * stride[outer],
                        static_cast<int>(shape[inner]), stride[inner]);
}

template <typename T> T read(const T *from) {
    return inside(from, sizeof(T)) ? *from : poisoned<T>();
}

// Copies a run; what lies outside of the parameter is reported once and arrives as NaN.
template <typename T, typename Put> void read_run(const T *from, int count, int64_t stride, Put put) {
    int64_t bytes = ((count - 1) * stride + 1) * static_cast<int64_t>(sizeof(T));
    if (inside(from, bytes)) {
        for (int i = 0; i < count; i++) put(i, from[i * stride]);
        return;
    }
    host->stray(core, from, static_cast<uint64_t>(bytes), false);
    for (int i = 0; i < count; i++) put(i, read(from + i * stride));
}

template <typename Tile> constexpr auto pad_value() {
    using T = typename Tile::DType;
    using limits = std::numeric_limits<T>;
    if constexpr (Tile::PadVal == pto::PadValue::Min)
        return limits::has_infinity ? static_cast<T>(-limits::infinity()) : limits::lowest();
    else if constexpr (Tile::PadVal == pto::PadValue::Max)
        return limits::has_infinity ? limits::infinity() : limits::max();
    else
        return T(0);
}

// TLOAD writes the valid part only, and fills the 32-byte block in which a run ends: with the pad value (UB, where the
// tile has one), with zero (L1: ND to NZ pads the fractal), else with whatever was there, here poison. The CPU headers
// clear the whole tile, which hides a missing pad.
template <typename Tile, typename Global> void load(Tile &tile, Global &global) {
    using T = typename Tile::DType;
    static_assert(sizeof(T) == sizeof(typename Global::DType), "TLOAD: element sizes of tensor and tile differ");
    constexpr int block = 32 / sizeof(T);
    T *data = tile.data();
    for_each_run<Global, Tile>(global, [&](int index, auto *from, int count, int64_t stride) {
        auto *source = reinterpret_cast<const T *>(from);
        int padded = (count + block - 1) / block * block;
        if constexpr (Tile::SFractal == pto::SLayout::NoneBox) {
            constexpr int pitch = Tile::isRowMajor ? Tile::Cols : Tile::Rows;
            T *to = data + static_cast<size_t>(index) * pitch;
            if (stride == 1 && inside(source, count * static_cast<int64_t>(sizeof(T))))
                std::memcpy(to, source, count * sizeof(T));
            else
                read_run(source, count, stride, [&](int i, T value) { to[i] = value; });
            T pad = Tile::Loc == pto::TileType::Mat ? T(0) : poisoned<T>();
            if constexpr (Tile::PadVal != pto::PadValue::Null) pad = pad_value<Tile>();
            std::fill(to + count, to + std::min(padded, pitch), pad);
        } else {
            read_run(source, count, stride, [&](int i, T value) { data[at<Tile>(index, i)] = value; });
            for (int i = count; i < std::min<int>(padded, Tile::Cols); i++) data[at<Tile>(index, i)] = T(0);
        }
    });
}

template <typename T> void atomic_add(T *to, T value) {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>;
    std::atomic_ref<Bits> bits(*reinterpret_cast<Bits *>(to));
    Bits old = bits.load();
    while (!bits.compare_exchange_weak(old, std::bit_cast<Bits>(static_cast<T>(std::bit_cast<T>(old) + value)))) {
    }
}

// The fixpipe on its way from L0C to global memory: fp32 to fp16 and bf16 by modes F322F16 and F322BF16, which round to
// nearest even and leave infinities (the device default, saturation off). int32 leaves as it is; other pairs need a
// scale and are refused by the device headers too.
template <typename To, typename From> To fixpipe(From value, bool relu) {
    static_assert(std::is_same_v<To, From> ||
                      (std::is_same_v<From, float> && (std::is_same_v<To, half> || std::is_same_v<To, bfloat16_t>)),
                  "TSTORE: the fixpipe converts fp32 to fp16 or bf16 only; other types need a quantization scale");
    if (relu && value < From(0)) value = From(0);
    return static_cast<To>(value);
}

template <typename Tile, typename Global, pto::AtomicType Atomic = pto::AtomicType::AtomicNone,
          pto::ReluPreMode Relu = pto::ReluPreMode::NoRelu, pto::STPhase = pto::STPhase::Unspecified>
void store(Global &global, Tile &tile) {
    using T = typename Tile::DType;
    using To = std::remove_cv_t<typename Global::DType>;
    constexpr bool accumulator = Tile::Loc == pto::TileType::Acc;
    constexpr bool relu = Relu == pto::ReluPreMode::NormalRelu;
    static_assert(accumulator || sizeof(T) == sizeof(To), "TSTORE: element sizes of tile and tensor differ");
    T *data = tile.data();
    for_each_run<Global, Tile>(global, [&](int index, auto *to, int count, int64_t stride) {
        int64_t bytes = ((count - 1) * stride + 1) * static_cast<int64_t>(sizeof(To));
        if (!inside(to, bytes)) host->stray(core, to, static_cast<uint64_t>(bytes), true);
        for (int i = 0; i < count; i++) {
            T value = Tile::isRowMajor || Tile::SFractal != pto::SLayout::NoneBox ? data[at<Tile>(index, i)]
                                                                                  : data[at<Tile>(i, index)];
            To result;
            if constexpr (accumulator)
                result = fixpipe<To>(value, relu);
            else
                result = std::bit_cast<To>(value);
            if constexpr (Atomic == pto::AtomicType::AtomicAdd)
                atomic_add(to + i * stride, result);
            else
                to[i * stride] = result;
        }
    });
}
template <typename Tile, typename Global, pto::AtomicType Atomic, pto::STPhase> void store(Global &global, Tile &tile) {
    store<Tile, Global, Atomic>(global, tile);
}
template <typename Tile, typename Global, auto...> void store(Global &, Tile &, uint64_t) {
    static_assert(sizeof(Tile) == 0, "not simulated: TSTORE with a quantization scale");
}

// --- padding --------------------------------------------------------------------------------------------------------

template <typename To, typename From> void fill_pad_inplace(To &to, From &from) {
    check_fits(to, To::Numel);  // writes all of the declared tile
    pto::TFILLPAD_INPLACE_IMPL(to, from);
}
template <typename To, typename From> void fill_pad(To &to, From &from) {
    check_fits(to, To::Numel);
    pto::TFILLPAD_IMPL<To, From>(to, from);
}
template <typename Tile, pto::PadValue Pad> void fill_pad(Tile &to, Tile &from) {
    check_fits(to, Tile::Numel);
    pto::TFILLPAD_IMPL<Tile, Pad>(to, from);
}

// --- conversion -----------------------------------------------------------------------------------------------------

inline double round_integral(double value, pto::RoundMode mode) {
    switch (mode) {
        case pto::RoundMode::CAST_ROUND: return std::round(value);
        case pto::RoundMode::CAST_FLOOR: return std::floor(value);
        case pto::RoundMode::CAST_CEIL: return std::ceil(value);
        case pto::RoundMode::CAST_TRUNC: return std::trunc(value);
        default: return std::nearbyint(value);
    }
}

// Narrows to a 16-bit float; `static_cast` rounds to nearest even, the other modes step to the neighbour they ask for.
template <typename To> To round_float(float value, pto::RoundMode mode) {
    To nearest = static_cast<To>(value);
    float back = static_cast<float>(nearest);
    if (mode == pto::RoundMode::CAST_NONE || mode == pto::RoundMode::CAST_RINT || back == value || std::isnan(value) ||
        std::isinf(value))
        return nearest;
    auto step = [&](bool up) {  // the neighbour of `nearest` in 16 bits: ordered like sign and magnitude
        uint16_t bits = std::bit_cast<uint16_t>(nearest);
        if ((bits & 0x7fff) == 0) return std::bit_cast<To>(static_cast<uint16_t>(up ? 0x0001 : 0x8001));
        return std::bit_cast<To>(static_cast<uint16_t>((bits & 0x8000) != 0 == up ? bits - 1 : bits + 1));
    };
    To below = back < value ? nearest : step(false), above = back > value ? nearest : step(true);
    switch (mode) {
        case pto::RoundMode::CAST_FLOOR: return below;
        case pto::RoundMode::CAST_CEIL: return above;
        case pto::RoundMode::CAST_TRUNC: return value > 0 ? below : above;
        case pto::RoundMode::CAST_ODD: return std::bit_cast<uint16_t>(below) & 1 ? below : above;
        default: {  // CAST_ROUND: nearest, halves away from zero
            float low = value - static_cast<float>(below), high = static_cast<float>(above) - value;
            return low != high ? nearest : value > 0 ? above : below;
        }
    }
}

// TCVT: floats to integers saturate and turn NaN into 0, or drop the high bits where the default is saturation off
// (narrowing to 8 bits, int32 to int16); integers to floats and between floats round by the mode, CAST_NONE as RINT.
template <typename To, typename From> To convert_element(From value, pto::RoundMode mode, bool saturate) {
    if constexpr (std::is_same_v<To, From>) {
        if constexpr (std::is_same_v<To, float>)
            return mode == pto::RoundMode::CAST_NONE ? value : static_cast<float>(round_integral(value, mode));
        else
            return value;
    } else if constexpr (std::is_integral_v<To>) {
        double whole = static_cast<double>(value);
        if constexpr (!std::is_integral_v<From>) whole = round_integral(whole, mode);
        if (std::isnan(whole)) return To(0);
        constexpr double low = static_cast<double>(std::numeric_limits<To>::lowest());
        constexpr double high = static_cast<double>(std::numeric_limits<To>::max());
        if (saturate || std::isinf(whole)) {
            if (whole <= low) return std::numeric_limits<To>::lowest();
            if (whole >= high) return std::numeric_limits<To>::max();
        }
        return static_cast<To>(static_cast<int64_t>(whole));
    } else if constexpr (sizeof(To) == 2 && sizeof(From) >= 2) {
        return round_float<To>(static_cast<float>(value), mode);
    } else {
        return static_cast<To>(value);
    }
}

template <typename To, typename From>
void convert(To &to, From &from, pto::RoundMode mode, pto::SaturationMode saturation) {
    using D = typename To::DType;
    using S = typename From::DType;
    static_assert(std::is_arithmetic_v<D> || sizeof(D) == 2, "not simulated: TCVT to a packed or 8-bit float type");
    static_assert(std::is_arithmetic_v<S> || sizeof(S) == 2, "not simulated: TCVT from a packed or 8-bit float type");
    int rows = rows_of(to), cols = cols_of(to);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            to.data()[at<To>(i, j)] =
                convert_element<D, S>(from.data()[at<From>(i, j)], mode, saturation == pto::SaturationMode::ON);
}
template <typename To, typename From> void convert(To &to, From &from, pto::RoundMode mode) {
    using D = typename To::DType;
    using S = typename From::DType;
    constexpr bool narrowing = std::is_integral_v<D> && sizeof(D) < sizeof(S);
    convert(to, from, mode, narrowing ? pto::SaturationMode::OFF : pto::SaturationMode::ON);
}
template <typename To, typename From, typename Scratch>
void convert(To &to, From &from, Scratch &, pto::RoundMode mode, pto::SaturationMode saturation) {
    convert(to, from, mode, saturation);
}
template <typename To, typename From, typename Scratch>
void convert(To &to, From &from, Scratch &, pto::RoundMode mode) {
    convert(to, from, mode);
}

// --- comparison and selection ---------------------------------------------------------------------------------------

// TCMP, TCMPS: one bit per element, least significant first, each row's bits from the start of the mask's row. On A2
// and A3 int32 is compared for equality only, whatever the mode says.
template <typename T> bool holds(T a, T b, pto::CmpMode mode) {
    if (std::is_same_v<T, int32_t> && !host->a5 && mode != pto::CmpMode::EQ) {
        host->note(core, "int32 is compared for equality on A2 and A3, whatever the mode");
        return a == b;
    }
    switch (mode) {
        case pto::CmpMode::NE: return a != b;
        case pto::CmpMode::LT: return a < b;
        case pto::CmpMode::LE: return a <= b;
        case pto::CmpMode::GT: return a > b;
        case pto::CmpMode::GE: return a >= b;
        default: return a == b;
    }
}

template <typename Mask, typename Source, typename Second>
void compare(Mask &mask, Source &source, Second &&second, pto::CmpMode mode) {
    using T = typename Source::DType;
    using Other = std::remove_cvref_t<Second>;
    int rows = rows_of(source), cols = cols_of(source);
    for (int i = 0; i < rows; i++) {
        auto *bytes = reinterpret_cast<uint8_t *>(mask.data() + static_cast<size_t>(i) * Mask::Cols);
        for (int j = 0; j < cols; j++) {
            T other;
            if constexpr (!pto::is_tile_data_v<Other>)
                other = static_cast<T>(second);
            else if constexpr (std::is_same_v<Other, Source>)
                other = second.data()[at<Other>(i, j)];
            else
                other = second.data()[0];
            if (j % 8 == 0) bytes[j / 8] = 0;
            bytes[j / 8] |= static_cast<uint8_t>(holds(source.data()[at<Source>(i, j)], other, mode) << (j % 8));
        }
    }
}

// TSEL takes the first operand where the mask's bit is set, else the second; TSELS has a scalar for the second.
template <typename Tile, typename Mask, typename First, typename Second, typename Scratch>
    requires pto::is_tile_data_v<Scratch>
void select(Tile &to, Mask &mask, First &first, Second &second, Scratch &) {
    int rows = rows_of(to), cols = cols_of(to);
    for (int i = 0; i < rows; i++) {
        auto *bytes = reinterpret_cast<const uint8_t *>(mask.data() + static_cast<size_t>(i) * Mask::Cols);
        for (int j = 0; j < cols; j++)
            to.data()[at<Tile>(i, j)] =
                bytes[j / 8] >> (j % 8) & 1 ? first.data()[at<First>(i, j)] : second.data()[at<Second>(i, j)];
    }
}
template <typename Tile, typename Mask, typename First, typename Scratch>
void select(Tile &to, Mask &mask, First &first, Scratch &, typename First::DType scalar) {
    int rows = rows_of(to), cols = cols_of(to);
    for (int i = 0; i < rows; i++) {
        auto *bytes = reinterpret_cast<const uint8_t *>(mask.data() + static_cast<size_t>(i) * Mask::Cols);
        for (int j = 0; j < cols; j++)
            to.data()[at<Tile>(i, j)] = bytes[j / 8] >> (j % 8) & 1 ? first.data()[at<First>(i, j)] : scalar;
    }
}

// --- sorting --------------------------------------------------------------------------------------------------------

// TSORT32 sorts each 32 elements, largest first, equal ones in their order, into structures of 8 bytes: the element,
// and in the last 4 bytes the index's bits as they are. The CPU headers convert the index to the element's type.
template <typename To, typename From, typename Index, typename... Scratch>
void sort32(To &to, From &from, Index &index, Scratch &...) {
    using T = typename From::DType;
    struct Entry {
        T value;
        uint32_t index;
    };
    int rows = rows_of(from), cols = cols_of(from);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j += 32) {
            Entry entries[32];
            int count = std::min(32, cols - j);
            for (int k = 0; k < count; k++) {
                entries[k].value = from.data()[at<From>(i, j + k)];
                std::memcpy(&entries[k].index, &index.data()[at<Index>(i, j + k)], 4);
            }
            std::stable_sort(entries, entries + count,
                             [](const Entry &a, const Entry &b) { return a.value > b.value; });
            auto *bytes = reinterpret_cast<uint8_t *>(to.data() + at<To>(i, 0)) + static_cast<size_t>(j) * 8;
            for (int k = 0; k < count; k++, bytes += 8) {
                std::memset(bytes, 0, 8);
                std::memcpy(bytes, &entries[k].value, sizeof(T));
                std::memcpy(bytes + 4, &entries[k].index, 4);
            }
        }
}

// --- printing --------------------------------------------------------------------------------------------------------

// TPRINT: the valid part, a row a line; nothing on a core that has no such memory, where unguarded code runs too.
template <auto..., typename Tile, typename... Scratch> void print_tile(Tile &tile, Scratch &...) {
    if (!core->memory[memory_of<Tile>()].base) return;
    for (int i = 0; i < rows_of(tile); i++)
        for (int j = 0; j < cols_of(tile); j++)
            std::printf("%.6g%c", static_cast<double>(tile.data()[at<Tile>(i, j)]), j + 1 < cols_of(tile) ? ' ' : '\n');
}

// --- all cores ------------------------------------------------------------------------------------------------------

// SYNCALL, spelled with the flags that the device uses for it.
template <pto::SyncCoreType Type = pto::SyncCoreType::AIVOnly> void sync_all() {
    auto set = [](int mode, int flag) { host->cross_set(core, mode, flag); };
    auto wait = [](int flag) { host->cross_wait(core, flag); };
    if constexpr (Type == pto::SyncCoreType::AIVOnly) {
        if (core->kind == vector) set(0, pto::SYNC_AIV_ONLY_ALL), wait(pto::SYNC_AIV_ONLY_ALL);
    } else if constexpr (Type == pto::SyncCoreType::AICOnly) {
        if (core->kind == cube) set(0, pto::SYNC_AIC_FLAG), wait(pto::SYNC_AIC_FLAG);
    } else if (core->kind == cube) {
        wait(pto::SYNC_AIV_FLAG), set(0, pto::SYNC_AIC_FLAG), wait(pto::SYNC_AIC_FLAG), set(2, pto::SYNC_AIC_AIV_FLAG);
    } else {
        set(2, pto::SYNC_AIV_FLAG), wait(pto::SYNC_AIC_AIV_FLAG);
    }
}

// TROWSUM: the device compares the valid rows of both tiles only; a single row may stand in a padded column.
template <typename Out, typename In, typename Scratch> void row_sum(Out &out, In &in, Scratch &) {
    pto::TRowSum<Out, In>(out.data(), in.data(), static_cast<uint16_t>(rows_of(in)), static_cast<uint16_t>(cols_of(in)));
}

}  // namespace vnpu
