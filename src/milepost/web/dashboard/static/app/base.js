/* What every page can do: parts that change in place, dialogs, keys, copying. Pages work without it. */
(() => {
  "use strict";
  const root = document.body.dataset.root, stream = document.getElementById("stream");
  const live = document.getElementById("live"), dialog = document.getElementById("dialog");
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const said = (state, text) => { if (live) { live.dataset.state = state; live.lastElementChild.textContent = text; } };

  /* Parts: nothing is swapped while the pointer is down, a dialog is open, or one types in the part. */
  const marks = stream ? JSON.parse(stream.dataset.marks) : {}, waiting = new Map();
  let pressed = false, heard = Date.now(), hiddenAt = 0, tried = 0;
  const isHeld = (old) => pressed || $("dialog[open]") || (old && old.contains(document.activeElement) && /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName) && document.activeElement.type !== "checkbox");
  /* What somebody opened or ticked stays so. */
  const keep = (old, fresh) => {
    const folds = (one) => [one, ...$$("details", one)], was = folds(old);
    folds(fresh).forEach((one, at) => { if (was[at]?.open) one.open = true; });
    for (const one of $$("[type=checkbox][id]", fresh)) one.checked = $(`#${one.id}`, old)?.checked ?? one.checked;
  };
  const swap = ({ id, mark, html }) => {
    const old = document.getElementById(id);
    if (!old || marks[id] === mark) return;
    if (isHeld(old)) { waiting.set(id, { id, mark, html }); return; }
    const focused = old.contains(document.activeElement) && document.activeElement.id;
    const made = document.createElement("template");
    made.innerHTML = html;
    const fresh = made.content.firstElementChild;
    if (!fresh) return;
    for (const field of $$("[name=form_token]", fresh)) field.value = document.body.dataset.form;
    keep(old, fresh);
    if (document.dispatchEvent(new CustomEvent("part", { cancelable: true, detail: { id, old, fresh } }))) old.replaceWith(fresh);
    marks[id] = mark;
    if (window.htmx) window.htmx.process(fresh);
    if (focused) document.getElementById(focused)?.focus();
    times();
  };
  const release = () => { const held = [...waiting.values()]; waiting.clear(); held.forEach(swap); };
  addEventListener("pointerdown", () => { pressed = true; });
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => { pressed = false; setTimeout(release, 0); });
  document.addEventListener("close", release, true);
  document.addEventListener("focusout", () => setTimeout(release, 0));
  const alive = () => { heard = Date.now(); said("on", "Live"); };
  if (stream) {
    stream.addEventListener("part", (event) => { event.stopPropagation(); alive(); swap(JSON.parse(event.detail.data)); });
    stream.addEventListener("beat", alive);
    stream.addEventListener("end", () => location.reload());
    setInterval(() => {
      const quiet = Date.now() - heard;
      if (document.hidden || quiet < 12000) return;
      said("off", `Cut off ${Math.round(quiet / 1000)} s ago, trying again. Numbers are of ${new Date(heard).toLocaleTimeString()}.`);
      /* htmx tries again what was connected once; what never was, it leaves. */
      if (!stream._htmx?.sse && Date.now() - tried > 9000) { tried = Date.now(); window.htmx?.trigger(stream, "connect"); }
    }, 1000);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) hiddenAt = Date.now();
      else if (hiddenAt) { const passed = Math.round((Date.now() - hiddenAt) / 60000); heard = Date.now(); if (passed) said("on", `Paused ${passed} min`); }
    });
  }

  /* Times: how long ago, or, after `t`, the time itself. */
  let absolute = false;
  const steps = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const ago = (seconds) => {
    for (const [size, unit] of steps) if (Math.abs(seconds) >= size) { const text = `${Math.floor(Math.abs(seconds) / size).toLocaleString("en")} ${unit}`; return seconds < 0 ? `in ${text}` : `${text} ago`; }
    return "now";
  };
  const times = () => { for (const one of $$("time[data-ago]")) { const text = absolute ? one.title : ago((Date.now() - Date.parse(one.dateTime)) / 1000); if (one.textContent !== text) one.textContent = text; } };
  setInterval(() => { if (!document.hidden) times(); }, 1000);

  /* Dialogs: a link to a confirmation opens here instead of as a page. */
  const open = async (address) => {
    const answer = await fetch(address, { headers: { "X-Dialog": "1" } });
    if (!answer.ok || answer.redirected) { location.href = address; return; }
    dialog.innerHTML = await answer.text();
    dialog.showModal();
    dialog.dispatchEvent(new CustomEvent("filled", { bubbles: true }));
  };
  /* Scripts of a page without TLS have no clipboard: then the text is selected, and copied if it can be. */
  const copy = async (button, from) => {
    const was = button.textContent;
    let done = false;
    try { await navigator.clipboard.writeText(from.innerText); done = true; } catch { getSelection().selectAllChildren(from); done = document.execCommand("copy"); }
    button.textContent = done ? "Copied" : "Selected";
    setTimeout(() => { button.textContent = was; }, 1200);
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-dialog]");
    if (link && !event.metaKey && !event.ctrlKey) { event.preventDefault(); open(link.href); }
    const shut = event.target.closest("[data-close]");
    if (shut && shut.closest("dialog")) { event.preventDefault(); shut.closest("dialog").close(); }
    const opener = event.target.closest("[data-open]");
    if (opener) $(opener.dataset.open).showModal();
    const copier = event.target.closest("[data-copy]");
    if (copier) copy(copier, $(copier.dataset.copy));
  });
  /* A button stays off until the number that is typed fits. */
  const guard = (within) => $$("button[data-guarded]", within).forEach((button) => { button.disabled = true; });
  guard(document);
  document.addEventListener("filled", (event) => guard(event.target));
  document.addEventListener("input", (event) => {
    const wanted = event.target.dataset.must;
    if (wanted !== undefined) for (const button of $$("button[data-guarded]", event.target.form)) button.disabled = event.target.value.replace(/[\s,]/g, "") !== wanted;
  });
  window.milepost = { open, $, $$, root };

  /* Keys: never while one types. */
  const places = { o: "/", j: "/jobs", e: "/errors", r: "/runs", p: "/pipelines", q: "/queues", l: "/limits", s: "/schedules", c: "/channels" };
  let going = 0;
  const rows = () => $$("[data-row]");
  const at = () => rows().findIndex((row) => row.classList.contains("at"));
  const move = (to) => { const all = rows(); if (!all.length) return; const next = all[Math.max(0, Math.min(all.length - 1, to))]; all.forEach((row) => row.classList.toggle("at", row === next)); next.scrollIntoView({ block: "nearest" }); };
  addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox") { if (event.key === "Escape") event.target.blur(); return; }
    if ($("dialog[open]")) return;
    if (Date.now() - going < 1500 && places[event.key]) { location.href = root + places[event.key]; return; }
    going = event.key === "g" ? Date.now() : 0;
    const press = $$(`[data-key="${CSS.escape(event.key)}"]`).find((one) => one.offsetParent);
    if (press) { event.preventDefault(); /^(INPUT|TEXTAREA)$/.test(press.tagName) ? press.focus() : press.click(); return; }
    const row = rows()[at()];
    if (event.key === "j") move(at() + 1);
    else if (event.key === "k") move(at() < 0 ? 0 : at() - 1);
    else if (event.key === "Enter" && row && event.target === document.body) { const link = row.matches("a") ? row : $("a", row); if (link) link.click(); }
    else if (event.key === "t") { absolute = !absolute; document.body.classList.toggle("absolute", absolute); times(); }
    else if (event.key === "?") $("#keys").showModal();
    else document.dispatchEvent(new CustomEvent("milepost:key", { detail: { key: event.key, row, shift: event.shiftKey } }));
  });
})();
