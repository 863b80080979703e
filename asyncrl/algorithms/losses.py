"""Policy losses of single tokens: each answers a loss a token, not yet aggregated."""

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.base import TokenLoss
from asyncrl.algorithms.masking import Metrics, clamped, inside, mean_pair, upcast


@dataclass(frozen=True)
class TokenInputs:
    """A loss's inputs with 0 in place of masked and non-finite tokens, so that no NaN is ever computed with."""

    logprobs_BT: Tensor
    proximal_BT: Tensor
    log_ratio_BT: Tensor
    advantages_BT: Tensor
    mask_BT: Tensor
    usable_BT: Tensor
    weights_BT: Tensor | None

    def finish(self, loss_BT: Tensor, metrics: Metrics, clipped_BT: Tensor | None = None) -> TokenLoss:
        """Apply the weights; leave out and count what came out non-finite. It stays in the denominators."""
        if self.weights_BT is not None:
            loss_BT = loss_BT * inside(self.weights_BT, self.usable_BT).detach()
        finite_BT = self.usable_BT & loss_BT.isfinite()
        nonfinite_BT = self.mask_BT & ~finite_BT
        return TokenLoss(
            loss_BT=torch.where(finite_BT, loss_BT, 0.0),
            metrics={
                **metrics,
                "approx_kl": self.mean(-clamped(self.log_ratio_BT)),
                "nonfinite_tokens": mean_pair(nonfinite_BT, self.mask_BT),
            },
            nonfinite_BT=nonfinite_BT,
            clipped_BT=None if clipped_BT is None else clipped_BT.detach() & self.usable_BT,
        )

    def mean(self, values_BT: Tensor) -> tuple[Tensor, Tensor]:
        """A metric's pair over valid tokens; those left out are 0 in it."""
        return mean_pair(inside(values_BT.detach(), self.usable_BT), self.mask_BT)


def prepare(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None,
    *,
    bare_logprobs: bool = False,
) -> TokenInputs:
    """Clean inputs. A token is usable if its log ratio is not NaN and its advantage is finite.

    With `bare_logprobs`, for a loss with the logprob itself in it, the logprob has to be finite too; in a ratio -inf is
    a log ratio of -20.
    """
    logprobs_BT, proximal_BT = upcast(logprobs_BT), upcast(proximal_BT).detach()
    advantages_BT = upcast(advantages_BT).detach()
    usable_BT = mask_BT & ~(logprobs_BT - proximal_BT).detach().isnan() & advantages_BT.isfinite()
    if bare_logprobs:
        usable_BT = usable_BT & logprobs_BT.isfinite()
    logprobs_BT, proximal_BT = inside(logprobs_BT, usable_BT), inside(proximal_BT, usable_BT)
    return TokenInputs(
        logprobs_BT=logprobs_BT,
        proximal_BT=proximal_BT,
        log_ratio_BT=logprobs_BT - proximal_BT,
        advantages_BT=inside(advantages_BT, usable_BT),
        mask_BT=mask_BT,
        usable_BT=usable_BT,
        weights_BT=weights_BT,
    )


def ppo_clip(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None = None,
    *,
    low: float,
    high: float,
    dual_clip: float | None,
    lag_scale: float = 1.0,
    lags_BT: Tensor | None = None,
) -> TokenLoss:
    """PPO's clipped surrogate: max(-A r, -A clamp(r, 1 - low, 1 + high)), r the ratio to the proximal policy.

    Arguments and result as in `base.PolicyLoss`. `high` above `low` is clip-higher. Where A < 0 the loss is at most
    -A x `dual_clip` (> 1; None: no bound). With `lags_BT` a token's `low` and `high` are multiplied by `lag_scale` for
    each version of its age: the older a token, the less it may move the policy (0 < lag_scale <= 1; ours).

    Metrics: clip_frac, tokens whose clipped form won; clip_frac_lower, tokens that the dual clip bounded.
    Source: arXiv:1707.06347; dual clip arXiv:1912.09729; clip-higher arXiv:2503.14476.
    """
    tokens = prepare(logprobs_BT, proximal_BT, advantages_BT, mask_BT, weights_BT)
    ratio_BT = clamped(tokens.log_ratio_BT).exp()
    plain_BT = -tokens.advantages_BT * ratio_BT
    scale_BT = torch.ones_like(ratio_BT) if lags_BT is None else lag_scale ** inside(lags_BT, mask_BT).to(ratio_BT)
    clipped_BT = -tokens.advantages_BT * ratio_BT.clamp(1 - low * scale_BT, 1 + high * scale_BT)
    loss_BT = torch.maximum(plain_BT, clipped_BT)
    cut_BT = clipped_BT > plain_BT
    metrics = {"clip_frac": tokens.mean(cut_BT)}
    if dual_clip is None:
        return tokens.finish(loss_BT, metrics, cut_BT)
    negative_BT = tokens.advantages_BT < 0
    bound_BT = -tokens.advantages_BT * dual_clip
    bounded_BT = negative_BT & (loss_BT > bound_BT)
    metrics["clip_frac_lower"] = tokens.mean(bounded_BT)
    loss_BT = torch.where(negative_BT, torch.minimum(loss_BT, bound_BT), loss_BT)
    return tokens.finish(loss_BT, metrics, cut_BT | bounded_BT)


def surrogate(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None = None,
) -> TokenLoss:
    """The surrogate without a clip: -A r, r the ratio to the proximal policy.

    Arguments and result as in `base.PolicyLoss`.

    Source: arXiv:1707.06347, equation 6; as used by M2PO, arXiv:2510.01161.
    """
    tokens = prepare(logprobs_BT, proximal_BT, advantages_BT, mask_BT, weights_BT)
    return tokens.finish(-tokens.advantages_BT * clamped(tokens.log_ratio_BT).exp(), {})


def cispo(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None = None,
    *,
    low: float,
    high: float,
) -> TokenLoss:
    """CISPO: the log-likelihood weighted by the clipped ratio, which has no gradient, so that no token loses its own.

    Arguments and result as in `base.PolicyLoss`; `low` >= 1 leaves the lower side open.

    Metrics: clip_frac, tokens whose ratio was outside.
    Source: arXiv:2506.13585, section 3.1.
    """
    tokens = prepare(logprobs_BT, proximal_BT, advantages_BT, mask_BT, weights_BT, bare_logprobs=True)
    ratio_BT = clamped(tokens.log_ratio_BT).exp().detach()
    kept_BT = ratio_BT.clamp(1 - low, 1 + high)
    # Products with the logprob first: an overflow then meets finite factors only on its way back, and its 0 stays 0.
    loss_BT = -(tokens.logprobs_BT * tokens.advantages_BT) * kept_BT
    return tokens.finish(loss_BT, {"clip_frac": tokens.mean(ratio_BT != kept_BT)}, ratio_BT != kept_BT)


def reinforce(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None = None,
) -> TokenLoss:
    """The plain policy gradient: -A times the logprob. Arguments and result as in `base.PolicyLoss`.

    Source: Williams 1992; as used by GPG, arXiv:2504.02546.
    """
    tokens = prepare(logprobs_BT, proximal_BT, advantages_BT, mask_BT, weights_BT, bare_logprobs=True)
    return tokens.finish(-(tokens.logprobs_BT * tokens.advantages_BT), {})


def sapo(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None = None,
    *,
    tau_positive: float,
    tau_negative: float,
) -> TokenLoss:
    """SAPO: a smooth gate in place of the clip, -A sigmoid(tau (r - 1)) 4 / tau.

    Arguments and result as in `base.PolicyLoss`; tau > 0 is `tau_positive` where A > 0 and `tau_negative` elsewhere.

    Source: arXiv:2511.20347.
    """
    tokens = prepare(logprobs_BT, proximal_BT, advantages_BT, mask_BT, weights_BT)
    ratio_BT = clamped(tokens.log_ratio_BT).exp()
    tau_BT = torch.where(tokens.advantages_BT > 0, tau_positive, tau_negative)
    gate_BT = torch.sigmoid(tau_BT * (ratio_BT - 1)) * 4 / tau_BT
    return tokens.finish(-tokens.advantages_BT * gate_BT, {})


def dppo_tv(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None = None,
    *,
    low: float,
    high: float,
    ratio_cap: float,
) -> TokenLoss:
    """DPPO with total variation: a token is trained while its probability has moved by at most `low` down, `high` up.

    Arguments and result as in `base.PolicyLoss`; `ratio_cap` bounds the ratio that weighs the log-likelihood.

    Metrics: clip_frac, tokens outside the trust region; clip_frac_lower, tokens inside it with a capped ratio.
    Source: arXiv:2602.04879.
    """
    tokens = prepare(logprobs_BT, proximal_BT, advantages_BT, mask_BT, weights_BT, bare_logprobs=True)
    moved_BT = tokens.logprobs_BT.detach().exp() - tokens.proximal_BT.exp()
    trusted_BT = torch.where(tokens.advantages_BT > 0, moved_BT <= high, moved_BT >= -low)
    return _within_trust_region(tokens, trusted_BT, ratio_cap)


def dppo_kl(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None = None,
    *,
    low: float,
    high: float,
    ratio_cap: float,
) -> TokenLoss:
    """DPPO with the binary KL (this token against all others) of the proximal policy to the current one.

    Arguments, metrics and result as in `dppo_tv`; `low` and `high` bound the divergence, and a token that moves back
    towards the proximal policy is trusted at any distance.

    Source: arXiv:2602.04879.
    """
    tokens = prepare(logprobs_BT, proximal_BT, advantages_BT, mask_BT, weights_BT, bare_logprobs=True)
    new_BT, old_BT = tokens.logprobs_BT.detach().exp(), tokens.proximal_BT.exp()
    # Logprobs of a bfloat16 model can be a hair above 0; a probability above 1 would give the logarithm of a negative.
    rest_BT = ((1 - old_BT).clamp(min=0) + 1e-8).log() - ((1 - new_BT).clamp(min=0) + 1e-8).log()
    divergence_BT = -old_BT * clamped(tokens.log_ratio_BT.detach()) + (1 - old_BT) * rest_BT
    up_BT = (divergence_BT <= high) | (new_BT <= old_BT)
    down_BT = (divergence_BT <= low) | (new_BT >= old_BT)
    return _within_trust_region(tokens, torch.where(tokens.advantages_BT > 0, up_BT, down_BT), ratio_cap)


def _within_trust_region(tokens: TokenInputs, trusted_BT: Tensor, ratio_cap: float) -> TokenLoss:
    ratio_BT = clamped(tokens.log_ratio_BT).exp().detach()
    loss_BT = -(tokens.logprobs_BT * tokens.advantages_BT) * ratio_BT.clamp(max=ratio_cap) * trusted_BT
    metrics = {
        "clip_frac": tokens.mean(~trusted_BT),
        "clip_frac_lower": tokens.mean(trusted_BT & (ratio_BT > ratio_cap)),
    }
    return tokens.finish(loss_BT, metrics, ~trusted_BT | (ratio_BT > ratio_cap))


def dro(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None = None,
    *,
    beta: float,
) -> TokenLoss:
    """DRO: -(A logprob - beta / 2 (log ratio)^2), `beta` > 0. Arguments and result as in `base.PolicyLoss`.

    Source: arXiv:2405.19107.
    """
    tokens = prepare(logprobs_BT, proximal_BT, advantages_BT, mask_BT, weights_BT, bare_logprobs=True)
    penalty_BT = clamped(tokens.log_ratio_BT).square() * (beta / 2)
    return tokens.finish(penalty_BT - tokens.logprobs_BT * tokens.advantages_BT, {})
