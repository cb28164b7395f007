// Draws the mermaid blocks in the colours of the page, and again when those are changed.
(() => {
  const blocks = [...document.querySelectorAll("pre.mermaid")];
  if (!blocks.length) return;
  const texts = blocks.map((block) => block.textContent);
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => {
    const chosen = document.body.dataset.theme;
    return chosen === "dark" || (chosen !== "light" && system.matches);
  };
  let drawn;
  const draw = async () => {
    if (drawn === dark()) return;
    drawn = dark();
    mermaid.initialize({ startOnLoad: false, theme: drawn ? "dark" : "neutral" });
    blocks.forEach((block, index) => {
      block.removeAttribute("data-processed");
      block.textContent = texts[index];
    });
    await mermaid.run({ nodes: blocks });
  };
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
  system.addEventListener("change", draw);
  draw();
})();
