// Numbers and times as people write them.

const SUPER = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

export const superscript = (integer) => [...String(integer)].map((c) => SUPER[c]).join("");

export function plain(value, digits = 4) {
  return Number.isFinite(value) ? String(Number(value.toPrecision(digits))) : "–";
}

// 37.2, 5000, 3.2·10⁷
export function scientific(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e5) return plain(value, Math.max(digits, 3));
  let exponent = Math.floor(Math.log10(size));
  let mantissa = Number((value / 10 ** exponent).toPrecision(digits));
  if (Math.abs(mantissa) >= 10) { mantissa /= 10; exponent += 1; }
  return (mantissa === 1 ? "" : `${mantissa}·`) + "10" + superscript(exponent);
}

// What an input field shows: plain, or 1e30 from a million on.
export function editable(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-4 ? value.toExponential().replace("e+", "e") : String(Number(value.toPrecision(7)));
}

// NaN for what is not a number, or none that can be computed with (1e999).
export function parseNumber(text) {
  const cleaned = text.trim().replace(/\s/g, "").replace(/[·×*]10\^?/i, "e").replace(/^10\^/, "1e").replace(",", ".");
  if (!/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(cleaned)) return NaN;
  const value = Number(cleaned);
  return Number.isFinite(value) ? value : NaN;
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// The kinds of masks, norms and weights as the package declares them, the default first: filled by the first message.
const families = { mask: [], norm: [], weights: [] };
export const declare = (variants) => Object.assign(families, variants);
export const variants = (family) => families[family];
export const kindOf = (model, family) => (typeof model[family] === "string" ? model[family] : model[family]?.kind ?? families[family][0]?.kind);
export const variantName = (model, family) => families[family].find(({ kind }) => kind === kindOf(model, family))?.label ?? kindOf(model, family);
const isDefault = (model, family) => kindOf(model, family) === families[family][0]?.kind;

// What the clock says: the time of a run, or how many layers of a recorded model have acted.
export const momentOf = (run, time) => (run.facts?.words ? `layer ${Math.round(time)} of ${run.frames - 1}` : `t = ${scientific(time)}`);

export function describe(setting) {
  if (setting.recorded) return `SmolLM2, ${setting.parts === "all" ? "whole layers" : "attention alone"}`;
  const { model, start } = setting;
  const tokens = start.tokens + (start.appended?.length ?? 0) - (start.removed?.length ?? 0);
  const parts = [`n = ${tokens}`, `d = ${model.dim}`, model.heads ? plural(model.heads.length, "head") : `β = ${plain(model.beta)}`];
  parts.push(variantName(model, "mask"));
  for (const family of ["weights", "norm"]) if (!isDefault(model, family)) parts.push(variantName(model, family));
  const begins = start.kind && (families.start ?? []).find(({ kind }) => kind === start.kind);
  if (begins) parts.push(`start: ${begins.label.split(":")[0]}`);
  if (model.noise) parts.push(`σ = ${plain(model.noise)}`);
  if (model.frozen) parts.push(`${model.frozen.tokens.length} frozen`);
  return parts.join(" · ");
}
