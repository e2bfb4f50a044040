// The words of the page and what they mean: shown when a marked word is pointed at, reached by Tab, or touched; all of them in one list.

import { $, el } from "./dom.js";

// name -> [how the list calls it, what it means in plain words].
export const TERMS = {
  token: ["Token", "A piece of text (a word, or part of one) inside a language model. Here: a point on the sphere."],
  sphere: ["Sphere, circle", "All points at distance one from the middle. Only directions count; in two dimensions the sphere is a circle."],
  time: ["Time t, depth", "How many layers a token has gone through. One unit of time is about one layer, and here it flows without steps."],
  attention: ["Attention", "Each token looks at others and is pulled towards a weighted average of them. Similar tokens get the larger weights."],
  matrix: ["Attention matrix", "Each row is a token, coloured where it looks: the stronger, the more. The first row and column belong to the first token; of many tokens, several share a row."],
  causal: ["Causal mask", "A token sees itself and the tokens before it, never those that follow. The first token sees only itself."],
  beta: ["β, inverse temperature", "How picky attention is. Small: a token listens to everybody. Large: only to the nearest ones."],
  cluster: ["Cluster", "Tokens that have come so close that they move as one. The page links tokens that are closer than r."],
  radius: ["r, cluster radius", "Tokens closer than this belong to one cluster; so do chains of them."],
  renyi: ["Rényi center", "Go through the tokens in order: one that is at least δ away from every center so far becomes a center. Rényi parked cars in a street this way."],
  strong: ["Strong center", "A token with no earlier token at all within δ. Nothing near pulls it, so it hardly moves for a very long time."],
  delta: ["δ, separation", "How far apart centers have to be. Unless you set it, it follows from β: 4/√β."],
  captured: ["Captured", "A token that has come within a tenth of δ of a center. It stays with it for long."],
  metastable: ["Metastable", "At rest for so long that it looks final, and yet not final: a metastable cluster stands still for ages before it merges."],
  merge: ["Merge", "Two clusters become one. The later one is drawn to the earlier one, at first unnoticeably slowly."],
  decade: ["Decade", "A factor of ten. From 0.01 to 10⁴⁸ are fifty decades."],
  value: ["Value matrix V", "What attention does with what it sees: along some directions it pulls, along others it pushes, or turns."],
  spectrum: ["Eigenvalues of V", "How strongly V pulls along its own directions. Positive: it pulls. Negative: it pushes away. A complex pair: it turns."],
  leading: ["Leading directions L", "The directions that V amplifies most: those of the eigenvalue with the largest real part. Tokens end there."],
  frozen: ["Frozen token", "A token that pulls others and never moves."],
  first: ["First token", "Under the causal mask it sees only itself: with V = I it never moves, and all the others end where it stands."],
  energy: ["Energy", "A number that full attention can only raise. Where it is flat nothing seems to happen: a metastable state."],
  lines: ["World lines", "The path of every token through time. Where lines join, tokens have met."],
  norm: ["Norm", "The step in a layer that keeps tokens from growing without bound. It sets how fast they turn."],
  noise: ["Noise σ", "Random shaking of every token."],
  keys: ["Query and key", "Two matrices that decide which tokens look alike to attention."],
  feedforward: ["Feed-forward part", "The other half of a layer: it changes each token by itself, without looking at others."],
  heads: ["Heads", "Several attentions at once, each with its own β and its own V. Their pulls are added."],
  weights: ["Weights", "How much each token that is seen counts. Softmax: shares that add up to one. Unnormalised: not divided by their sum. Hardmax: only the most similar token counts."],
  mask: ["Mask", "Who sees whom. Causal: itself and all before. Full: everybody. Window: the last w. Sink: the first s and the last w. Prefix: the first p see each other."],
  predicted: ["Predicted", "What theory says about the end before anything is computed, from the eigenvalues of V; and whether that is a theorem or a conjecture."],
  reached: ["Reached", "Where the tokens are when the run ends, and whether that is what was predicted; “by” is the first frame from which no token is more than 0.01 rad from where it ends. Clusters that have not merged yet do not contradict it: they may need more time."],
  counts: ["Clusters, law N(t)", "How many clusters there are: tokens linked closer than r. Orange: the law N(t), how many theory expects at time t. Dotted: the expected numbers of centers."],
  start: ["Start", "How the first places are drawn: evenly over the sphere, around one direction or several, or each near the one before it."],
  seed: ["Seed", "The number that random draws begin with. The same seed draws the same tokens again."],
  horizon: ["Horizon", "The time up to which the run is computed. With log t every decade has the same room on the slider."],
  color: ["Colour", "By cluster: tokens that are one now. By order: from the first token to the last. By origin: where a token began."],
  projection: ["Projection", "More than three dimensions cannot be drawn: the picture shows three directions of them."],
  trails: ["Trails", "Where tokens were a little earlier: a tail on the sphere, a line towards the middle on the circle."],
  numbers: ["Number of a cluster", "The number of its first token, counted from 0."],
  ghost: ["Ended before", "Dashed rings: where clusters ended before the last change by hand."],
  joint: ["Model changes", "From here on tokens move by another model: the heading, the attention matrix, the spectrum and the frozen tokens are those of the moment that is shown."],
  sink: ["Sink", "The first token of a text. Models rest unused attention on it, and its state grows out of all proportion."],
};

// Words that the page has already: selector -> name.
const MARKS = {
  "#legend-renyi": "renyi", "#legend-strong": "strong", "#legend-first": "first", "#legend-frozen": "frozen", "#legend-ghost": "ghost", "#legend-leading span": "leading", "#legend-joint": "joint",
  "#lines figcaption > span": "lines", "#clusters figcaption > span:first-child": "counts", "#capture figcaption > span:first-child": "captured", "#energy figcaption > span:first-child": "energy",
  "#attention figcaption > span:first-child": "matrix", "#spectrum figcaption > span:first-child": "spectrum",
  "#clusters .key": "radius", "#capture .key": "delta", ".until > span": "horizon",
};
// A field of the form is explained by the longest beginning of its name that is here.
const FIELDS = {
  tokens: "token", dim: "sphere", seed: "seed", start: "start", beta: "beta", heads: "heads", head: "heads", mask: "mask", weights: "weights", norm: "norm", noise: "noise", frozen: "frozen",
  value: "value", "value-seed": "seed", query: "keys", "query-seed": "seed", key: "keys", "key-seed": "seed", delta: "delta", radius: "radius", color: "color", projection: "projection",
  trails: "trails", centers: "renyi", numbers: "numbers",
};

let open = null; // the word whose meaning is shown

// A word of a text as a button that explains itself.
export const term = (name, text) => el("button", { type: "button", class: "term", "data-term": name }, text);

// A text with marked words: "a [[token]] and [[beta|β]]", and **strong** words.
export function prose(text) {
  return text.split(/(\[\[[^\]]+\]\]|\*\*[^*]+\*\*)/).filter(Boolean).map((piece) => {
    if (piece.startsWith("**")) return el("strong", {}, ...prose(piece.slice(2, -2)));
    if (!piece.startsWith("[[")) return piece;
    const [name, shown = name] = piece.slice(2, -2).split("|");
    return term(name, shown);
  });
}

function mark(node, name) {
  if (!node || node.dataset.term) return;
  node.removeAttribute("title"); // one explanation is enough
  Object.assign(node.dataset, { term: name });
  node.classList.add("term");
  node.tabIndex = 0;
  node.setAttribute("role", "button");
}

function show(node) {
  const tip = $("#gloss"), [title, text] = TERMS[node.dataset.term];
  if (open && open !== node) open.removeAttribute("aria-describedby");
  open = node;
  tip.replaceChildren(el("b", {}, title), text);
  (node.closest("dialog, :fullscreen") ?? document.body).append(tip); // a dialog, or the full screen, covers everything that is not in it
  tip.hidden = false;
  node.setAttribute("aria-describedby", "gloss");
  const word = node.getBoundingClientRect(), box = tip.getBoundingClientRect(), room = 8;
  const left = Math.max(room, Math.min(word.left, innerWidth - box.width - room));
  const below = word.bottom + room + box.height < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? word.bottom + 6 : Math.max(room, word.top - box.height - 6)}px`;
}

export function hideTerm() {
  open?.removeAttribute("aria-describedby");
  open = null;
  $("#gloss").hidden = true;
}

function fillList() {
  const entries = Object.entries(TERMS).sort(([, [a]], [, [b]]) => a.localeCompare(b));
  $("#glossary dl").replaceChildren(...entries.flatMap(([name, [title, text]]) => [el("dt", { id: `term-${name}` }, title), el("dd", {}, text)]));
}

const wordOf = (event) => (event.target instanceof Element ? event.target.closest(".term") : null);

export function startGlossary() {
  fillList();
  document.addEventListener("pointerover", (event) => { if (event.pointerType !== "touch" && wordOf(event)) show(wordOf(event)); });
  document.addEventListener("pointerout", (event) => { const word = wordOf(event); if (word && word === open && !word.contains(event.relatedTarget) && word !== document.activeElement) hideTerm(); });
  document.addEventListener("focusin", (event) => { const word = wordOf(event); if (word) show(word); else if (open) hideTerm(); });
  document.addEventListener("focusout", (event) => { if (wordOf(event) === open) hideTerm(); });
  document.addEventListener("click", (event) => { const word = wordOf(event); if (word) show(word); else if (open) hideTerm(); });
  document.addEventListener("scroll", () => { if (open) hideTerm(); }, { capture: true, passive: true });
  // Before the keys of the page: Escape closes the meaning and nothing else, Enter and space show it.
  document.addEventListener("keydown", (event) => {
    if (open && event.key === "Escape") { hideTerm(); event.stopPropagation(); event.preventDefault(); return; }
    const word = wordOf(event);
    if (word && (event.key === "Enter" || event.key === " ")) { if (open === word) hideTerm(); else show(word); event.stopPropagation(); event.preventDefault(); }
  }, { capture: true });
  for (const button of document.querySelectorAll(".open-glossary")) button.addEventListener("click", () => { document.querySelector("dialog[open]")?.close(); $("#glossary").showModal(); });
}

// Mark the words of the page, once its form is there.
export function markTerms() {
  for (const [selector, name] of Object.entries(MARKS)) mark($(selector), name);
  for (const field of document.querySelectorAll("#form .field")) {
    const parts = field.querySelector("[name]")?.name.split("-") ?? [], known = parts.map((_, k) => parts.slice(0, parts.length - k).join("-")).find((name) => FIELDS[name]);
    if (known) mark(field.querySelector("span:not(.sr)"), FIELDS[known]);
  }
}
