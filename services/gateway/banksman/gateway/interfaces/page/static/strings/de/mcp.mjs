/** @satisfies {import("../../strings.mjs").Translation<typeof import("../en/mcp.mjs").default>} */
export default {
  // Servers of the Model Context Protocol
  'mcp.intro':
    'Server des Model Context Protocol geben Agenten weitere Werkzeuge. Agenten erhalten ein Werkzeug, sobald Sie es freigeben.',
  'mcp.none': 'Noch ist kein Server verbunden.',
  'mcp.add': 'Server hinzufügen',
  'mcp.nameText':
    'Kleinbuchstaben, Ziffern und Bindestriche. Agenten sehen seine Werkzeuge als name__werkzeug.',
  'mcp.kind': 'Wo er läuft',
  'mcp.kind.http': 'Auf einem entfernten Server (URL)',
  'mcp.kind.stdio': 'In der Sandbox, als Programm',
  'mcp.command': 'Befehl',
  'mcp.commandText':
    'Das Programm muss dort installiert sein, wo die Werkzeuge laufen. Setzen Sie ein Wort mit Leerzeichen in Anführungszeichen.',
  'mcp.values.http': 'Kopfzeilen',
  'mcp.values.stdio': 'Umgebungsvariablen',
  'mcp.valuesText':
    'Werte werden verschlüsselt gespeichert und nie wieder gezeigt. {secret} steht für ein Geheimnis Ihres Teams.',
  'mcp.addValue.http': 'Kopfzeile hinzufügen',
  'mcp.addValue.stdio': 'Variable hinzufügen',
  'mcp.removeValue': '{name} entfernen',
  'mcp.trusted': 'Werkzeuge, die der Server nur lesend nennt, laufen ohne Freigabe',
  'mcp.connect': 'Verbinden',
  'mcp.changeTitle': '{name} ändern',
  'mcp.description': 'Beschreibung',
  'mcp.timeout': 'Sekunden, die ein Aufruf dauern darf',
  'mcp.callTimeout': 'Ein Aufruf darf {duration} dauern.',
  'mcp.valueStays': 'unverändert',
  'mcp.placeChanges':
    'Eine neue Adresse oder ein neuer Befehl entfernt die gespeicherten Werte, die Anmeldung und die Freigaben der Werkzeuge. Geben Sie die Werte neu ein.',
  'mcp.outdated': 'Jemand anderes hat diesen Server inzwischen geändert.',
  'mcp.state': 'Zustand',
  'mcp.state.ready': 'Verbunden',
  'mcp.state.waits': 'Werkzeuge warten auf Ihre Freigabe',
  'mcp.state.signIn': 'Braucht eine Anmeldung',
  'mcp.state.failed': 'Fehlgeschlagen',
  'mcp.state.unknown': 'Noch nicht verbunden',
  'mcp.problem.server': 'Die Werkzeuge des Servers ließen sich nicht lesen',
  'mcp.problem.secret': 'Ein Geheimnis Ihres Teams fehlt oder passt hier nicht',
  'mcp.problem.sign_in': 'Die Anmeldung ist fehlgeschlagen oder beendet',
  'mcp.problem.unavailable': 'Kein Prozess, der den Server erreichen könnte, hat geantwortet',
  'mcp.found': 'Werkzeuge gelesen {when}',
  'mcp.secrets.http': 'Sendet die Kopfzeilen {names}, deren Werte geheim sind.',
  'mcp.secrets.stdio': 'Erhält die Variablen {names}, deren Werte geheim sind.',
  'mcp.createdBy': 'Hinzugefügt von {user}, {when}',
  'mcp.look': 'Werkzeuge neu lesen',
  'mcp.removeTitle': 'Server entfernen',
  'mcp.removeQuestion': '{name} entfernen? Agenten können seine Werkzeuge dann nicht mehr nutzen.',
  'mcp.account': 'Konto beim Server',
  'mcp.signInText':
    'Der Server muss wissen, mit wessen Konto er arbeitet. Melden Sie sich dort an: Die Agenten Ihres ganzen Teams nutzen seine Werkzeuge dann mit Ihrem Konto.',
  'mcp.signedIn':
    '{user} hat sich angemeldet ({when}). Die Agenten Ihres Teams nutzen die Werkzeuge mit diesem Konto.',
  'mcp.signInBy': 'Wer sich dort anmeldet, falls eine Anmeldung nötig ist',
  'mcp.signInBy.tenant': 'Eine Person der Verwaltung, für alle',
  'mcp.signInBy.user': 'Jede Person selbst',
  'mcp.signInByText.tenant':
    'Agenten benutzen die Werkzeuge mit einem Konto, für wen auch immer sie arbeiten.',
  'mcp.signInByText.user':
    'Agenten benutzen die Werkzeuge mit dem Konto der Person, für die sie arbeiten. Jede Person meldet sich unter Einstellungen an.',
  'mcp.signInOwnText':
    'Hier meldet sich jede Person mit ihrem eigenen Konto an. Melden Sie sich an, um die Werkzeuge des Servers zu lesen; Ihre eigenen Läufe benutzen dann Ihr Konto.',
  'mcp.signedInOwn':
    '{user} hat sich angemeldet ({when}). Die Werkzeuge werden mit diesem Konto gelesen, und nur Ihre eigenen Läufe benutzen es.',
  'mcp.signInEnded':
    'Die Anmeldung hat länger als zehn Minuten gedauert, oder inzwischen wurde eine andere begonnen. Melden Sie sich noch einmal an.',
  'mcp.ownClient': 'Eigene Client-ID verwenden',
  'mcp.ownClientText':
    'Bei manchen Anbietern muss Banksman vorher registriert werden. Geben Sie dort die Rückkehradresse {address} an, und tragen Sie hier ein, was Sie erhalten haben.',
  'mcp.client_id': 'Client-ID',
  'mcp.client_secret': 'Client-Geheimnis, falls es eines gibt',
  'mcp.changes': {
    one: '{count} Werkzeug wartet auf Ihre Freigabe',
    other: '{count} Werkzeuge warten auf Ihre Freigabe',
  },
  'mcp.changesText':
    'Lesen Sie, was der Server dem Modell über jedes Werkzeug mitteilt. Ändert er später ein Werkzeug, wartet es wieder hier.',
  'mcp.changedMeanwhile':
    'Der Server hat seine Werkzeuge geändert, während Sie sie gelesen haben. Lesen Sie sie noch einmal, bevor Sie sie freigeben.',
  'mcp.approve': { one: '{count} Werkzeug freigeben', other: '{count} Werkzeuge freigeben' },
  'mcp.tool.new': 'neu',
  'mcp.tool.changed': 'geändert: neu freigeben',
  'mcp.tool.restored': 'wie früher freigegeben',
  'mcp.tools': 'Freigegebene Werkzeuge',
  'mcp.noTools': 'Keine. Agenten nutzen kein Werkzeug dieses Servers.',
  'mcp.asks': 'wartet auf Freigabe',
  'mcp.asksNot': 'läuft ohne Freigabe',
  'mcp.schema': 'Parameter',
  'mcp.refused': 'Dieses Werkzeug kann nicht angeboten werden: {reason}',
};
