"""Machines as their system and LLVM describe them to `compiler.target`, with the expected devices."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

import pytest

import compiler.target
from core.instruction_sets import instruction_sets


@dataclass(frozen=True)
class Machine:
    """`cpu_info` is from /proc/cpuinfo; `mcpu` and `llvm` are LLVM's name and features of the processor. The
    other fields are the expected result of a probe.
    """

    architecture: str
    cpu_info: str
    mcpu: str
    llvm: str
    features: str
    vector_bytes: int
    registers: int
    mattr: tuple[str, ...] = ()
    intrinsics: tuple[str, ...] = ()

    def stand_in(self, patch: pytest.MonkeyPatch, folder: Any) -> None:
        """Simulate this machine until the patch is undone."""
        (folder / "proc").mkdir()
        (folder / compiler.target.CPU_INFO).write_text(self.cpu_info)
        has = self.llvm.split()
        names = [one.name for one in instruction_sets(self.architecture)]
        patch.setattr(compiler.target, "ROOT", folder)
        patch.setattr(compiler.target, "_host_features", lambda: {name: name in has for name in names})
        patch.setattr(compiler.target, "_host_cpu", lambda: self.mcpu)
        patch.setattr(compiler.target, "request_tiles", lambda: None)
        patch.setattr(platform, "machine", lambda: self.architecture)


SSE = "sse3 ssse3 sse4.1 sse4.2 popcnt"
AVX2 = f"{SSE} movbe lzcnt bmi bmi2 avx f16c fma avx2"
AVX512 = (
    "avx512f avx512cd avx512dq avx512bw avx512vl avx512ifma avx512vbmi avx512vbmi2 avx512vnni avx512bitalg "
    "avx512vpopcntdq avx512bf16"
)
AVX2_DOTS = ("dot_8x4_pmaddubsw", "dot_8x2_pmaddwd", "dot_8x2_int16_pmaddwd")
AVX512_DOTS = (
    *("dot_16x4_pmaddubsw", "dot_8x4_pmaddubsw", "dot_16x2_pmaddwd", "dot_8x2_pmaddwd"),
    *("dot_16x2_int16_pmaddwd", "dot_8x2_int16_pmaddwd"),
)
MATRICES = (
    *("mmla_2x4x64_smmla", "mmla_2x4x32_smmla", "mmla_2x4x64_ummla", "mmla_2x4x32_ummla"),
    *("mmla_2x4x32_bfmmla", "mmla_2x4x16_bfmmla", "dot_4x2_bfdot"),
)
DOT = ("dot_4x4_i8i8s32_sdot", "dot_4x4_u8u8u32_udot", "dot_4x4_u8u8i32_hdot", "dot_4x4_i8i8s32_neon")

ZEN4_CPU_INFO = """\
processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 25
model		: 17
model name	: AMD EPYC 9R14
flags		: fpu vme de pse tsc msr \
pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht \
syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc rep_good nopl nonstop_tsc cpuid \
extd_apicid aperfmperf tsc_known_freq pni pclmulqdq monitor ssse3 fma cx16 pcid sse4_1 sse4_2 x2apic \
movbe popcnt aes xsave avx f16c rdrand hypervisor lahf_lm cmp_legacy cr8_legacy abm sse4a \
misalignsse 3dnowprefetch topoext invpcid_single vmmcall fsgsbase bmi1 avx2 smep bmi2 invpcid \
{avx512}rdseed adx smap clflushopt clwb sha_ni xsaveopt xsavec xgetbv1 xsaves clzero xsaveerptr \
rdpru wbnoinvd arat gfni vaes vpclmulqdq rdpid
"""
ZEN4_AVX512 = (
    "avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512_bf16 avx512vbmi avx512_vbmi2 avx512_vnni "
    "avx512_bitalg avx512_vpopcntdq "
)
HASWELL_CPU_INFO = """\
processor	: 0
vendor_id	: GenuineIntel
cpu family	: 6
model		: 60
model name	: Intel(R) Core(TM) i7-4770 CPU @ 3.40GHz
flags		: fpu vme de pse tsc msr \
pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush dts acpi mmx fxsr \
sse sse2 ss ht tm pbe syscall nx pdpe1gb rdtscp lm constant_tsc arch_perfmon pebs bts rep_good nopl \
xtopology nonstop_tsc cpuid aperfmperf pni pclmulqdq dtes64 monitor ds_cpl vmx smx est tm2 ssse3 \
sdbg fma cx16 xtpr pdcm pcid sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline_timer aes xsave avx f16c \
rdrand lahf_lm abm cpuid_fault epb invpcid_single pti fsgsbase tsc_adjust bmi1 avx2 smep bmi2 erms \
invpcid xsaveopt dtherm ida arat pln pts
vmx flags	: vnmi preemption_timer invvpid ept_x_only
"""
NEHALEM_CPU_INFO = """\
processor	: 0
vendor_id	: GenuineIntel
cpu family	: 6
model		: 26
model name	: Intel(R) Core(TM) i7 CPU 920 @ 2.67GHz
flags		: fpu vme de pse tsc msr \
pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush dts acpi mmx fxsr \
sse sse2 ss ht tm pbe syscall nx rdtscp lm constant_tsc arch_perfmon pebs bts rep_good nopl \
xtopology nonstop_tsc cpuid aperfmperf pni dtes64 monitor ds_cpl vmx est tm2 ssse3 cx16 xtpr pdcm \
sse4_1 sse4_2 popcnt lahf_lm pti dtherm ida
"""
ARM_CPU_INFO = """\
processor	: 0
BogoMIPS	: 108.00
Features	: {features}
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x0
CPU part	: 0x{part}
CPU revision	: 3
"""

ZEN4 = Machine(
    "x86_64",
    ZEN4_CPU_INFO.format(avx512=ZEN4_AVX512),
    "znver4",
    f"{AVX2} {AVX512} sse4a gfni vaes vpclmulqdq",
    "avx avx2 avx512_bf16 avx512_bitalg avx512_vbmi2 avx512_vnni avx512_vpopcntdq avx512bw avx512cd avx512dq "
    "avx512f avx512ifma avx512vbmi avx512vl fma sse4_1 sse4_2 sse4a",
    64,
    32,
    intrinsics=("dot_16x4_vnni", "dot_8x4_vnni", "dot_16x2_dpbf16ps", "dot_8x2_dpbf16ps", *AVX512_DOTS),
)
MACHINES = {
    "zen4": ZEN4,
    # The hypervisor hides AVX-512 from programs and from the kernel, and LLVM knows the processor.
    "zen4-without-avx512": Machine(
        "x86_64",
        ZEN4_CPU_INFO.format(avx512=""),
        "znver4",
        f"{AVX2} sse4a gfni vaes vpclmulqdq",
        "avx avx2 fma sse4_1 sse4_2 sse4a",
        32,
        16,
        ("-avx512f",),
        AVX2_DOTS,
    ),
    # And more features, which imply no others.
    "zen4-without-bmi": Machine(
        "x86_64",
        ZEN4_CPU_INFO.format(avx512="").replace("bmi1", "").replace("bmi2", "").replace("gfni", ""),
        "znver4",
        f"{AVX2} sse4a vaes vpclmulqdq".replace("bmi2", "").replace("bmi", ""),
        "avx avx2 fma sse4_1 sse4_2 sse4a",
        32,
        16,
        ("-avx512f", "-bmi", "-bmi2", "-gfni"),
        AVX2_DOTS,
    ),
    # A processor with AMX, which its kernel permits.
    "sapphire-rapids": Machine(
        "x86_64",
        ZEN4_CPU_INFO.format(avx512=f"{ZEN4_AVX512}avx_vnni amx_bf16 amx_tile amx_int8 ").replace(
            "sse4a", ""
        ),
        "sapphirerapids",
        f"{AVX2} {AVX512} avxvnni gfni vaes vpclmulqdq amx-bf16 amx-tile amx-int8",
        "amx_bf16 amx_int8 amx_tile avx avx2 avx512_bf16 avx512_bitalg avx512_vbmi2 avx512_vnni "
        "avx512_vpopcntdq avx512bw avx512cd avx512dq avx512f avx512ifma avx512vbmi avx512vl avx_vnni fma "
        "sse4_1 sse4_2",
        64,
        32,
        ("-avx512fp16",),
        (*ZEN4.intrinsics[:4], "dot_8x4_avx_vnni", *AVX512_DOTS),
    ),
    "haswell": Machine(
        "x86_64",
        HASWELL_CPU_INFO,
        "haswell",
        AVX2,
        "avx avx2 fma sse4_1 sse4_2",
        32,
        16,
        intrinsics=AVX2_DOTS,
    ),
    "nehalem": Machine("x86_64", NEHALEM_CPU_INFO, "nehalem", SSE, "sse4_1 sse4_2", 16, 16),
    # A processor newer than LLVM.
    "unknown-with-avx2": Machine(
        "x86_64",
        HASWELL_CPU_INFO,
        "x86-64",
        AVX2,
        "avx avx2 fma sse4_1 sse4_2",
        32,
        16,
        ("+avx2", "+bmi", "+bmi2", "+f16c", "+fma", "+lzcnt", "+movbe", "+popcnt"),
        AVX2_DOTS,
    ),
    # The kernel was configured without AVX-512, so it doesn't save these registers.
    "zen4-kernel-without-avx512": Machine(
        "x86_64",
        ZEN4_CPU_INFO.format(avx512=""),
        "znver4",
        f"{AVX2} {AVX512} sse4a gfni vaes vpclmulqdq",
        "avx avx2 fma sse4_1 sse4_2 sse4a",
        32,
        16,
        ("-avx512f",),
        AVX2_DOTS,
    ),
    # Under user-mode emulation /proc/cpuinfo is the host's.
    "haswell-emulated-on-zen4": Machine(
        "x86_64",
        ZEN4_CPU_INFO.format(avx512=ZEN4_AVX512),
        "haswell",
        AVX2,
        "avx avx2 fma sse4_1 sse4_2",
        32,
        16,
        intrinsics=AVX2_DOTS,
    ),
    "haswell-emulated-on-arm": Machine(
        "x86_64",
        ARM_CPU_INFO.format(features="fp asimd asimddp", part="d0c"),
        "haswell",
        AVX2,
        "avx avx2 fma sse4_1 sse4_2",
        32,
        16,
        intrinsics=AVX2_DOTS,
    ),
    "nothing-told": Machine(
        "x86_64",
        "",
        "znver4",
        AVX2,
        "avx avx2 fma sse4_1 sse4_2",
        32,
        16,
        ("-avx512f", "-gfni", "-sse4a", "-vaes", "-vpclmulqdq"),
        AVX2_DOTS,
    ),
    "cortex-a72": Machine(
        "aarch64",
        ARM_CPU_INFO.format(features="fp asimd evtstrm crc32 cpuid", part="d08"),
        "cortex-a72",
        "neon",
        "asimd",
        16,
        32,
        intrinsics=DOT[3:],
    ),
    "arm-with-dot-product-that-llvm-does-not-know": Machine(
        "aarch64",
        ARM_CPU_INFO.format(
            features="fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc "
            "dcpop asimddp",
            part="fff",
        ),
        "generic",
        "neon rdm fullfp16 dotprod",
        "asimd asimddp asimdhp asimdrdm",
        16,
        32,
        ("+dotprod", "+fullfp16", "+rdm"),
        DOT,
    ),
    # KVM's default processor.
    "neoverse-v1-without-sve": Machine(
        "aarch64",
        ARM_CPU_INFO.format(
            features="fp asimd fphp asimdhp asimdrdm fcma asimddp asimdfhm i8mm bf16", part="d40"
        ),
        "neoverse-v1",
        "neon rdm fullfp16 fp16fml dotprod complxnum i8mm bf16",
        "asimd asimddp asimdfhm asimdhp asimdrdm bf16 i8mm",
        16,
        32,
        ("-sve",),
        (*MATRICES, *DOT),
    ),
    "neoverse-v1": Machine(
        "aarch64",
        ARM_CPU_INFO.format(
            features="fp asimd fphp asimdhp asimdrdm fcma asimddp sve asimdfhm svei8mm svebf16 i8mm bf16",
            part="d40",
        ),
        "neoverse-v1",
        "neon rdm fullfp16 fp16fml dotprod complxnum i8mm bf16 sve",
        "asimd asimddp asimdfhm asimdhp asimdrdm bf16 i8mm sve svebf16 svei8mm",
        16,
        32,
        intrinsics=(*MATRICES, *DOT),
    ),
    "arm-emulated-on-zen4": Machine(
        "aarch64",
        ZEN4_CPU_INFO.format(avx512=ZEN4_AVX512),
        "generic",
        "neon rdm fullfp16 dotprod sve sve2",
        "asimd asimddp asimdhp asimdrdm sve sve2",
        16,
        32,
        ("+dotprod", "+fullfp16", "+rdm"),
        DOT,
    ),
    "a-machine-of-which-no-names-are-known": Machine(
        "riscv64", "processor : 0\nisa : rv64imafdcv\n", "generic-rv64", "", "", 16, 32
    ),
}
