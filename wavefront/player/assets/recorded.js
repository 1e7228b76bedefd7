// Start the player of a standalone page: a report, or a file shared from the server's page.

const data = JSON.parse(byId('data').textContent);
let player = null;
if (data.decodes.length) {
  if (byId('model')) byId('model').textContent = data.decodes[0].events[0].model;
  player = new Player(data.options);
  player.show(data.decodes.map((record) => Decode.load(record)));
  player.openInTheMiddle();
}
watchTheme(() => player && player.paint());
