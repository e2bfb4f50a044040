// Which field a hand is at: text that was typed and not yet entered, a slider that is still held. Only that one is left alone when the page
// shows its state; a field that merely has the focus shows what is.

let held = null;

// Capturing, so that a field's own listeners find it let go of.
document.addEventListener("input", ({ target }) => { held = target; target.removeAttribute("aria-invalid"); }, true);
for (const name of ["change", "focusout", "pointerup", "pointercancel"]) document.addEventListener(name, ({ target }) => { if (target === held && !(name.startsWith("pointer") && target.type !== "range")) held = null; }, true);

export const typing = (field) => field === held;

// The state came from elsewhere (Back, a link, a preset): what was being typed is gone.
export function letGo() { held = null; }

// Show a value in a field, unless a hand is at it.
export function show(field, text) {
  if (typing(field)) return;
  field.value = text;
  field.removeAttribute("aria-invalid");
}
