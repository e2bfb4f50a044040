// Everything by keyboard.

import { $ } from "./dom.js";
import { active, store } from "./store.js";
import { tokenDirection } from "./picture.js";
import { typing } from "./typing.js";

const OF_SLIDERS = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"]);
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

export function startKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") { leave(actions); return; }
    const stage = actions.stages.find((item) => item.canvas === document.activeElement);
    if (stage && onStage(event, stage, actions)) { event.preventDefault(); return; }
    if (event.target.closest("input:not([type=range]), select, textarea, [role=menu]")) {
      // Text that is being typed has an undo of its own; a field where everything is entered has none, and the page's is meant.
      if (!typing(event.target) && history(event, actions)) event.preventDefault();
      return;
    }
    if (event.altKey || (event.target.matches("input[type=range]:not(#scrub)") && OF_SLIDERS.has(event.key))) return;
    if (history(event, actions) || (!event.metaKey && general(event, actions))) event.preventDefault();
  });
}

// Ctrl-Z and its opposite (with Cmd on a Mac).
function history(event, actions) {
  if (!event.ctrlKey && !event.metaKey) return false;
  const key = event.key.toLowerCase();
  if (key === "z") (event.shiftKey ? actions.redo : actions.undo)();
  else if (key === "y") actions.redo();
  else return false;
  return true;
}

function general(event, actions) {
  const { clock } = actions, { view } = store.state, step = (event.ctrlKey ? 10 : 1) * clock.stride;
  if (event.key === " ") {
    if (event.target.closest("button, a, input[type=checkbox]") && event.target.id !== "play") return false;
    clock.toggle();
    return true;
  }
  const run = {
    ArrowLeft: () => clock.seek(view.at - step),
    ArrowRight: () => clock.seek(view.at + step),
    Home: () => clock.seek(0),
    End: () => clock.seek(1),
  }[event.key] ?? (event.ctrlKey ? null : {
    // What has no button while the story is told has no key either.
    ...(view.story === null || store.state.panels.length > 1 ? { t: actions.toggleLog, c: () => actions.setCompare(store.state.panels.length < 2), a: () => actions.editor.startAppend(true), e: () => actions.editor.toggle() } : {}),
    l: () => $("#theme").click(),
    f: () => $("#fullscreen").click(),
    Delete: () => actions.editor.remove(),
    Backspace: () => actions.editor.remove(),
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
    stage.hover = -1;
    actions.page.tip = { panel, token: stage.selected };
    stage.events.redraw();
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
    actions.editor.nudge(panel, stage.selected, tokenDirection(stage, stage.selected, arrow));
    return true;
  }
  return false;
}

function leave(actions) {
  for (const stage of actions.stages) stage.stopPlacing();
  actions.notice("");
  actions.hideTip();
  if (actions.editor.on) actions.editor.toggle(false);
  if (actions.stages[active()].selected >= 0) actions.stages[active()].events.selected(-1);
}
