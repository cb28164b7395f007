/* Lists hold still: what is new is counted, and shown when somebody asks for it. */
(() => {
  "use strict";
  const count = (part) => {
    if (!part || !part.dataset.new) return;
    const fresh = part.dataset.new.trim().split(" ").filter((id) => !document.getElementById(part.dataset.prefix + id)).length;
    part.classList.toggle("there", fresh > 0);
    part.replaceChildren();
    if (!fresh) return;
    const link = document.createElement("a");
    link.href = location.href; link.className = "under"; link.dataset.key = "."; link.textContent = "Show them";
    const noun = document.createElement("b");
    noun.textContent = `${fresh} new ${part.dataset.noun}${fresh === 1 ? "" : "s"}`;
    part.append(noun, " ", link);
  };
  document.addEventListener("part", (event) => { if (event.detail.fresh?.dataset.new) setTimeout(() => count(document.getElementById(event.detail.id)), 0); });
  document.addEventListener("change", (event) => { if (event.target.matches("select[data-submit]")) event.target.form.submit(); });
})();
