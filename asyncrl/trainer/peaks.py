"""What devices can do: their peak, which the share of it that a run reaches is taken of."""

import torch

from asyncrl.trainer.models import Arithmetic

BFLOAT16_TFLOPS: tuple[tuple[str, float], ...] = (
    # Names as the driver gives them, longer ones before what they begin with. Dense products, without sparsity.
    ("NVIDIA GB300", 2500.0),  # NVIDIA GB300 NVL72 data sheet, 2025: 360 PFLOP/s with sparsity of 72
    ("NVIDIA GB200", 2500.0),  # NVIDIA GB200 NVL72 data sheet, 2024: 360 PFLOP/s with sparsity of 72
    ("NVIDIA B300", 2250.0),  # NVIDIA HGX B300 data sheet, 2025: 36 PFLOP/s with sparsity of 8
    ("NVIDIA B200", 2250.0),  # NVIDIA HGX B200 data sheet, 2024: 36 PFLOP/s with sparsity of 8
    ("NVIDIA GH200", 989.4),  # NVIDIA GH200 data sheet, 2023
    ("NVIDIA H200 NVL", 835.5),  # NVIDIA H200 data sheet, 2024
    ("NVIDIA H200", 989.4),  # NVIDIA H200 data sheet, 2024
    ("NVIDIA H100 NVL", 835.5),  # NVIDIA H100 data sheet, 2023
    ("NVIDIA H100 PCIe", 756.4),  # NVIDIA H100 data sheet, 2023
    ("NVIDIA H100", 989.4),  # NVIDIA H100 data sheet, 2023
    ("NVIDIA H800", 989.4),  # an H100 with a slower NVLink
    ("NVIDIA H20", 148.0),  # NVIDIA H20 data sheet, 2024
    ("NVIDIA A100", 312.0),  # NVIDIA A100 data sheet, 2020
    ("NVIDIA A800", 312.0),  # an A100 with a slower NVLink
    ("NVIDIA A40", 149.7),  # NVIDIA A40 data sheet, 2021
    ("NVIDIA A30", 165.0),  # NVIDIA A30 data sheet, 2021
    ("NVIDIA A10G", 70.0),  # AWS G5 instances; NVIDIA publishes no data sheet of it
    ("NVIDIA A10", 125.0),  # NVIDIA A10 data sheet, 2021
    ("NVIDIA L40S", 362.0),  # NVIDIA L40S data sheet, 2023
    ("NVIDIA L40", 181.0),  # NVIDIA L40 data sheet, 2022
    ("NVIDIA L4", 121.0),  # NVIDIA L4 data sheet, 2023: 242 with sparsity
    ("AMD Instinct MI355X", 2516.6),  # AMD Instinct MI355X data sheet, 2025
    ("AMD Instinct MI325X", 1307.4),  # AMD Instinct MI325X data sheet, 2024
    ("AMD Instinct MI300X", 1307.4),  # AMD Instinct MI300X data sheet, 2023
    ("AMD Instinct MI250X", 191.5),  # AMD Instinct MI250X data sheet, 2021: 383 for two dies, of which each is a device
)
"""Beginning of a device's name -> 10^12 operations a second in bfloat16."""


def peak_flops(device: torch.device, arithmetic: Arithmetic, tflops: float | None) -> float | None:
    """Operations a second that one device can do at most; None if that is not known.

    Args:
        arithmetic: of the trainer's passes. Peaks are known of bfloat16.
        tflops: what the configuration says (trainer.peak_tflops), which wins.
    """
    if tflops is not None:
        return tflops * 1e12
    if device.type != "cuda" or arithmetic != "bfloat16":
        return None
    return known_peak(torch.cuda.get_device_name(device))


def known_peak(name: str) -> float | None:
    """By the device's name, as the driver gives it. A slice of a device (MIG) has no peak of its own here."""
    if " MIG " in name:
        return None
    return next((tflops * 1e12 for known, tflops in BFLOAT16_TFLOPS if name.startswith(known)), None)
