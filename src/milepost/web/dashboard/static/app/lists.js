/* A list says which rows it would have now; those that are not shown are only counted. */
document.addEventListener("part", ({ detail: { fresh } }) => {
  const names = fresh?.dataset.rows, told = document.getElementById("fresh");
  if (names === undefined || !told) return;
  const missing = names.split(" ").filter((id) => id && !document.getElementById(id)).length;
  told.hidden = !missing;
  told.querySelector("b").textContent = missing === 1 ? "1 new error" : `${missing} new errors`;
});
