"""Attention of PyTorch's tensors, with gradients through the package's backward pass."""

from functools import cache
from typing import Any, NamedTuple

from ..functional import attention
from ..gradients import attention_backward
from ..matrices import attention_weights
from ._tensors import array_of, attend_at_once, tensor_of


class Settings(NamedTuple):
    """Options of a call that are no tensors."""

    causal: bool  # query i sees the keys 0 to i
    scale: float | None
    softcap: float | None
    dropout: float
    seed: int | None

    def options(self, mask: Any = None, sinks: Any = None) -> dict[str, Any]:
        """As keywords of the package's functions, those that say what is so anyway left out."""
        found: dict[str, Any] = {"causal": self.causal}
        if self.scale is not None:
            found["scale"] = self.scale
        if mask is not None:
            found["mask"] = array_of(mask)
        if self.softcap is not None:
            found["softcap"] = self.softcap
        if sinks is not None:
            found["sinks"] = array_of(sinks)
        if self.dropout:
            found |= {"dropout": self.dropout, "seed": self.seed}
        if self.causal:
            found["align"] = "start"
        return found


def attend(q: Any, k: Any, v: Any, mask: Any, sinks: Any, settings: Settings) -> Any:
    """Context vectors (B, Tq, H, Dv), contiguous, of (B, H, T, D) tensors.

    `mask` is a tensor of bools (True: may attend) or floats (added) that broadcasts to
    (B, H, Tq, Tk); `sinks` is (H,). Gradients go to q, k, v, a float mask and the sinks.
    """
    import torch

    if torch.is_grad_enabled():
        given = [x for x in (q, k, v, mask, sinks) if x is not None]
        if any(x.requires_grad for x in given):
            return _function().apply(q, k, v, mask, sinks, settings)
    if mask is None and sinks is None and settings.softcap is None and not settings.dropout:
        out = q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3]))
        batch, tokens, heads, width = out.stride()
        strides, kind = (batch, heads, tokens, width), str(q.dtype).removeprefix("torch.")
        if attend_at_once(q, k, v, out, strides, None, kind, settings.causal, settings.scale):
            return out
    return _forward(q, k, v, mask, sinks, settings, False)[0]


def _forward(
    q: Any, k: Any, v: Any, mask: Any, sinks: Any, settings: Settings, return_lse: bool
) -> tuple[Any, Any]:
    """The contexts, and the (B, H, Tq) log-sum-exp where it is asked for."""
    arrays = (array_of(x).swapaxes(1, 2) for x in (q, k, v))
    options = settings.options(mask, sinks)
    if q.shape[2] == k.shape[2]:
        options.pop("align", None)  # start and end are one
    if not return_lse:
        return tensor_of(attention(*arrays, layout="BTHD", **options)), None
    out, lse = attention(*arrays, layout="BTHD", return_lse=True, **options)
    return tensor_of(out), tensor_of(lse)


@cache
def _function() -> Any:
    """The class that PyTorch's autograd calls; made when it is first needed."""
    import torch

    class Last(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
        """A gradient, as it is; whoever wants its gradient is told that there is none."""

        @staticmethod
        def forward(ctx: Any, gradient: Any, *_: Any) -> Any:
            return gradient.view_as(gradient)

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            raise RuntimeError(
                "gradient: expected first derivatives alone, got a second one; "
                'choose attn_implementation="eager" for it'
            )

    class Attention(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
        @staticmethod
        def forward(
            ctx: Any, q: Any, k: Any, v: Any, mask: Any, sinks: Any, settings: Settings
        ) -> Any:
            out, lse = _forward(q, k, v, mask, sinks, settings, True)
            ctx.save_for_backward(q, k, v, mask, sinks, out, lse)
            ctx.settings = settings
            return out

        @staticmethod
        def backward(ctx: Any, grad_out: Any) -> tuple[Any, ...]:
            q, k, v, mask, sinks, out, lse = ctx.saved_tensors
            wants_mask, wants_sinks = ctx.needs_input_grad[3:5]
            grads = attention_backward(
                array_of(grad_out).swapaxes(1, 2),
                array_of(q),
                array_of(k),
                array_of(v),
                array_of(out).swapaxes(1, 2),
                array_of(lse),
                mask_grad=wants_mask,
                sinks_grad=wants_sinks,
                **ctx.settings.options(mask, sinks),
            )
            found = [tensor_of(each) for each in grads]
            of_mask = found.pop().to(mask.dtype) if wants_mask else None
            of_sinks = found.pop().to(sinks.dtype) if wants_sinks else None
            results = (*found, of_mask, of_sinks)
            if torch.is_grad_enabled():  # the gradients are to be differentiated again
                results = tuple(
                    x if x is None else Last.apply(x, grad_out, q, k, v, mask, sinks)
                    for x in results
                )
            return *results, None

    return Attention


def weights_of(q: Any, k: Any, mask: Any, sinks: Any, settings: Settings) -> Any:
    """Attention weights (B, H, Tq, Tk), before dropout; with gradients where they are wanted."""
    import torch

    given = [x for x in (q, k, mask, sinks) if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return _torch_weights(q, k, mask, sinks, settings)
    options = settings._replace(dropout=0.0).options(mask, sinks)
    return tensor_of(attention_weights(array_of(q), array_of(k), **options))


def _torch_weights(q: Any, k: Any, mask: Any, sinks: Any, settings: Settings) -> Any:
    """The same by PyTorch's operators, whose gradients PyTorch knows."""
    import torch

    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    group = q.shape[1] // max(k.shape[1], 1)
    keys = k.repeat_interleave(group, dim=1) if group > 1 else k
    scale = q.shape[3] ** -0.5 if settings.scale is None else settings.scale
    scores = q.to(wide) @ keys.to(wide).transpose(2, 3) * scale
    if settings.softcap:
        scores = settings.softcap * torch.tanh(scores / settings.softcap)
    hidden = torch.zeros((), dtype=torch.bool)
    if settings.causal:
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
    if mask is not None:
        hidden = hidden | (~mask if mask.dtype is torch.bool else mask == -torch.inf)
        if mask.dtype is not torch.bool:
            scores = scores + mask.to(wide).masked_fill(mask == -torch.inf, 0.0)
    scores = scores.masked_fill(hidden, -torch.inf)
    empty = torch.zeros_like(scores[..., :1]) - torch.inf
    if sinks is not None:
        empty = sinks.to(wide).reshape(1, -1, 1, 1).expand_as(empty)
    top = torch.cat([scores, empty], dim=-1).amax(-1, keepdim=True).detach()
    top = top.masked_fill(top == -torch.inf, 0.0)  # a row that may attend to nothing
    parts, sink = torch.exp(scores - top), torch.exp(empty - top)
    total = parts.sum(-1, keepdim=True) + sink
    return (parts / total.masked_fill(total == 0, 1.0)).to(q.dtype)
