// What was predicted, what was reached, and how it was computed: in words.

import { el } from "./dom.js";
import { term } from "./glossary.js";
import { plural, scientific } from "./text.js";

let said = "";

export function drawVerdict(node, panels, settings) {
  node.classList.toggle("single", settings.length < 2);
  const made = el("div", {}, ...settings.map((_, panel) => block(panels.runs[panel], panels, panel)));
  if (made.innerHTML === said && node.childElementCount) return; // whoever reads a word of it may go on
  said = made.innerHTML;
  node.replaceChildren(...made.childNodes);
}

function block(run, panels, panel) {
  const list = el("dl", { "data-panel": panel });
  const facts = run?.facts, end = run?.end;
  const line = (name, text, kind = "") => list.append(el("dt", {}, term(name.toLowerCase(), name)), el("dd", { class: kind }, text));
  if (facts?.prediction) line("Predicted", facts.prediction.text, "predicted");
  if (end) {
    line("Reached", end.reached.text, `reached ${end.reached.agrees === true ? "agrees" : end.reached.agrees === false ? "differs" : ""}`);
    if (end.changed) list.append(el("dd", { class: "news" }, news(end.changed)));
    const steps = `${end.method}, engine ${end.engine}, ${plural(end.steps, "step")}` + (end.seconds === null ? "" : `, ${end.seconds < 1 ? `${Math.round(1000 * end.seconds)} ms` : `${end.seconds.toFixed(1)} s`}`);
    list.append(el("dd", { class: "fine" }, end.status === "success" ? steps : `${end.message || end.status} · ${steps}`));
  } else if (run && !panels.problems[panel]) line("Reached", `computing to t = ${scientific(run.times[run.frames - 1])} …`, "waiting");
  return list;
}

function news(changed) {
  const { moved, added, removed = 0, earlier, earlier_exact: exact, earlier_shift: shift, later, elsewhere } = changed;
  const parts = [];
  if (moved.length) {
    parts.push(moved.length === 1 ? `Token ${moved[0]} was moved.` : `${moved.length} tokens were moved.`);
    const quiet = exact ? "did not notice" : shift < 1e-3 ? "end in the same place" : `shift by up to ${scientific(shift, 2)}`;
    if (earlier) parts.push(`The ${plural(earlier, "token")} before ${moved.length === 1 ? "it" : "them"} ${quiet};`);
    parts.push(`of the ${later} from there on ${elsewhere} end elsewhere.`);
  } else if (removed > 0) {
    parts.push(removed === 1 ? "One token was taken out." : `${removed} tokens were taken out.`);
    parts.push(`The ${earlier} before ${exact ? "did not notice" : shift < 1e-3 ? "end in the same place" : `shift by up to ${scientific(shift, 2)}`}; of the ${later} behind ${elsewhere} end elsewhere.`);
  } else if (added > 0) {
    parts.push(`${added === 1 ? "One token was" : `${added} tokens were`} appended.`);
    parts.push(exact ? `The ${earlier} before did not notice.` : shift < 1e-3 ? `The ${earlier} before end in the same place.` : `The ${earlier} before shift by up to ${scientific(shift, 2)}.`);
  }
  return parts.join(" ");
}
