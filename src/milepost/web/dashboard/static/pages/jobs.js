/* The list of jobs: tokens with suggestions, selection, a chart to narrow by. */
(() => {
  "use strict";
  const { $, $$, open, root } = window.milepost, list = $("#joblist"), input = $("#token-input"), box = $("#suggestions");
  document.body.classList.add("scripted");

  /* Tokens */
  if (input) {
    const had = input.form.elements.had;
    let chosen = -1, asked = 0, timer = 0, listed = null;
    const options = () => $$("[role=option]", box);
    const mark = (to) => {
      const all = options();
      chosen = all.length ? (to + all.length) % all.length : -1;
      all.forEach((one, at) => one.setAttribute("aria-selected", at === chosen));
      if (chosen < 0) input.removeAttribute("aria-activedescendant"); else input.setAttribute("aria-activedescendant", all[chosen].id);
    };
    const told = () => input.setAttribute("aria-expanded", !box.hidden);
    const shut = () => { asked++; box.hidden = true; told(); box.replaceChildren(); chosen = -1; };
    const look = async () => {
      const mine = ++asked, typed = input.value, query = new URLSearchParams({ q: had.value, typed });
      const answer = await fetch(`${input.dataset.suggest}?${query}`);
      const text = answer.ok ? await answer.text() : "";
      if (mine !== asked || document.activeElement !== input) return;
      box.innerHTML = text;
      listed = typed;
      box.hidden = !options().length;
      told();
      mark(input.value ? 0 : -1);
      if (!input.value) chosen = -1;
    };
    const soon = () => { clearTimeout(timer); timer = setTimeout(look, 120); };
    const take = (one) => { input.value = one.dataset.take; if (one.dataset.whole === undefined) { input.focus(); look(); } else { shut(); input.form.requestSubmit(); } };
    input.setAttribute("role", "combobox");
    input.setAttribute("aria-controls", "suggestions");
    told();
    input.addEventListener("input", soon);
    input.addEventListener("focus", soon);
    input.addEventListener("blur", () => setTimeout(shut, 150));
    box.addEventListener("pointerdown", (event) => { event.preventDefault(); const one = event.target.closest("[role=option]"); if (one) take(one); });
    input.addEventListener("keydown", (event) => {
      const all = options();
      if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); if (all.length) mark(chosen + (event.key === "ArrowDown" ? 1 : -1)); else look(); }
      else if ((event.key === "Enter" || event.key === "Tab") && chosen >= 0 && listed === input.value && all[chosen].dataset.take !== input.value) { event.preventDefault(); take(all[chosen]); }
      else if (event.key === "Escape") { if (!box.hidden) event.stopPropagation(); shut(); }
      else if (event.key === "Backspace" && !input.value) { const drops = $$(".drop", input.form); if (drops.length) drops[drops.length - 1].click(); }
    });
  }

  /* Selection */
  if (list) {
    const picks = () => $$("[name=id]", list), picked = () => picks().filter((one) => one.checked);
    const all = $("#take-all"), page = $("#pick-page");
    let last = null;
    const tell = () => {
      const number = picked().length, word = all?.checked ? "" : ` ${number}`;
      $("#picked").textContent = all?.checked ? "All taken" : `${number} selected`;
      for (const button of $$("[data-bulk]", list)) button.textContent = `${button.value[0].toUpperCase()}${button.value.slice(1)}${word}…`;
      page.checked = number > 0 && number === picks().length;
      page.indeterminate = number > 0 && !page.checked;
    };
    const until = (row, value) => {
      const rows = $$("[data-row]", list), from = rows.findIndex((one) => one.id === last), to = rows.indexOf(row);
      for (const one of rows.slice(Math.min(from < 0 ? to : from, to), Math.max(from, to) + 1)) $("[name=id]", one).checked = value;
    };
    list.addEventListener("change", (event) => { if (event.target === page) picks().forEach((one) => { one.checked = page.checked; }); else if (event.target.name === "id") last = event.target.closest("tr").id; tell(); });
    list.addEventListener("click", (event) => { if (event.target.name === "id" && event.shiftKey) until(event.target.closest("tr"), event.target.checked); else if (!event.target.closest("a, input, button, label") && !getSelection().toString()) event.target.closest("[data-row]")?.querySelector("a").click(); });
    list.addEventListener("submit", (event) => { event.preventDefault(); const data = new FormData(list); data.append("action", event.submitter.value); if (all?.checked) data.delete("id"); open(`${list.getAttribute("action")}?${new URLSearchParams(data)}`); });
    document.addEventListener("milepost:key", ({ detail: { key, row } }) => {
      const act = (name) => { const button = $(`[data-bulk][value=${name}]`, list); if (button && !button.disabled && (picked().length || all?.checked)) button.click(); };
      if (key.toLowerCase() === "x" && row) { const one = $("[name=id]", row); if (key === "X") until(row, true); else one.checked = !one.checked; last = row.id; tell(); }
      else if (key === "a") { picks().forEach((one) => { one.checked = true; }); tell(); all?.focus(); }
      else if (key === "r") act("rerun");
      else if (key === "c") act("cancel");
      else if (key === "Escape") { picks().forEach((one) => { one.checked = false; }); if (all) all.checked = false; tell(); }
    });
    document.addEventListener("part", ({ detail: { old, fresh } }) => {
      if (!old?.matches("[data-row]")) return; /* the stream has an event of that name, too */
      $("[name=id]", fresh).checked = $("[name=id]", old).checked;
      fresh.classList.toggle("at", old.classList.contains("at"));
    });
    addEventListener("pageshow", () => { list.reset(); tell(); });
  }

  /* The chart: drag over a time to narrow the filter to it. */
  let from = null, drag = null;
  const place = (event, area) => { const box = area.getBoundingClientRect(), pad = 14; return Math.min(1, Math.max(0, (event.clientX - box.left - pad) / (box.width - 2 * pad))); };
  document.addEventListener("pointerdown", (event) => {
    const area = event.target.closest?.(".narrow");
    if (!area) return;
    from = { area, at: place(event, area) };
    drag = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    drag.classList.add("drag");
    area.append(drag);
  });
  document.addEventListener("pointermove", (event) => {
    if (!from) return;
    const to = place(event, from.area), wide = from.area.clientWidth - 28;
    drag.setAttribute("width", Math.abs(to - from.at) * wide);
    drag.setAttribute("height", 44);
    drag.style.left = `${14 + Math.min(to, from.at) * wide}px`;
  });
  document.addEventListener("pointerup", (event) => {
    if (!from) return;
    const { area, at } = from, to = place(event, area), since = Date.parse(area.dataset.since), length = Date.parse(area.dataset.until) - since;
    from = null;
    drag.remove();
    if (Math.abs(to - at) * area.clientWidth < 6) return;
    const time = (share) => `${new Date(since + share * length).toISOString().slice(0, 19)}Z`;
    const others = $("#tokens").elements.had.value.split(/\s+(?=(?:[^"]*"[^"]*")*[^"]*$)/).filter((one) => one && !/^-?(age|created):/.test(one));
    location.href = `${root}/jobs?${new URLSearchParams({ q: [...others, `created:>${time(Math.min(at, to))}`, `created:<${time(Math.max(at, to))}`].join(" ") })}`;
  });
})();
