// Everything by keyboard.

import { $ } from "./dom.js";
import { active, store } from "./store.js";
import { tokenDirection } from "./picture.js";

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

export function startKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") { leave(actions); return; }
    const stage = actions.stages.find((item) => item.canvas === document.activeElement);
    if (stage && onStage(event, stage, actions)) { event.preventDefault(); return; }
    if (event.target.closest("input:not([type=range]), select, textarea, [role=menu]")) return;
    if (event.metaKey || event.altKey || (event.target.matches("input[type=range]") && event.key in ARROWS && event.target.id !== "scrub")) return;
    if (general(event, actions)) event.preventDefault();
  });
}

function general(event, actions) {
  const { view } = store.state, step = (event.ctrlKey ? 10 : 1) / 360;
  if (event.key === " ") {
    if (event.target.closest("button, a, input[type=checkbox]") && event.target.id !== "play") return false;
    actions.togglePlay();
    return true;
  }
  const run = {
    ArrowLeft: () => actions.seek(view.at - step),
    ArrowRight: () => actions.seek(view.at + step),
    Home: () => actions.seek(0),
    End: () => actions.seek(1),
  }[event.key] ?? (event.ctrlKey ? null : {
    t: actions.toggleLog,
    c: () => actions.setCompare(store.state.panels.length < 2),
    l: () => $("#theme").click(),
    a: () => actions.startAppend(true),
    "?": () => $("#about").showModal(),
  }[event.key]);
  if (!run) return false;
  run();
  return true;
}

function onStage(event, stage, actions) {
  const panel = actions.stages.indexOf(stage), run = actions.panels.runs[panel];
  if (!run) return false;
  if (event.key === "," || event.key === ".") {
    const next = stage.selected + (event.key === "." ? 1 : -1);
    stage.events.selected((next + run.tokens) % run.tokens);
    stage.events.tip({ token: stage.selected, x: stage.screen[3 * stage.selected], y: stage.screen[3 * stage.selected + 1] });
    return true;
  }
  const arrow = ARROWS[event.key];
  if (!arrow) return false;
  if (event.shiftKey && !stage.flat) {
    actions.camera.spin = [0, 0];
    actions.camera.rotate(0.12 * arrow[0], -0.12 * arrow[1]);
    stage.events.turned();
    return true;
  }
  if (event.altKey && stage.selected >= 0) {
    actions.moveToken(panel, stage.selected, tokenDirection(stage, run, stage.selected, arrow));
    actions.page.held = null;
    return true;
  }
  return false;
}

function leave(actions) {
  for (const stage of actions.stages) { stage.placing = false; stage.canvas.classList.remove("place"); }
  actions.notice("");
  if (actions.stages[active()].selected >= 0) actions.stages[active()].events.selected(-1);
}
