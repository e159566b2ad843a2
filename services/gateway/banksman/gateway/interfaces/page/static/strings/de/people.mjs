/** @satisfies {import("../../strings.mjs").Translation<typeof import("../en/people.mjs").default>} */
export default {
  // People and their keys
  'people.intro':
    'Jede Person meldet sich mit einem eigenen Schlüssel oder Konto an. Entscheidungen zeigen ihren Namen.',
  'people.none': 'Noch ist niemand eingeladen.',
  'people.withoutKey':
    'Sie nutzen Banksman ohne Schlüssel, wie es jeder an diesem Computer kann. Laden Sie eine Person ein, und von da an braucht jeder einen Schlüssel.',
  'people.own': 'Erstellen Sie zuerst Ihren eigenen Schlüssel',
  'people.ownText':
    'Bevor Sie andere einladen, brauchen Sie einen eigenen Schlüssel, denn von da an kann niemand Banksman ohne Schlüssel nutzen. Er läuft nicht ab und hat alle Rechte.',
  'people.ownName': 'Ihr Name oder Ihre E-Mail-Adresse',
  'people.ownCreate': 'Meinen Schlüssel erstellen',
  'people.ownCreated': 'Ihr Schlüssel',
  'people.ownOnce':
    'Bewahren Sie diesen Schlüssel jetzt auf, zum Beispiel in Ihrem Passwortmanager. Er wird nur hier gezeigt, und Sie melden sich von nun an damit an.',
  'people.continue': 'Ich habe ihn aufbewahrt',
  'people.invite': 'Person einladen',
  'people.keys': 'Schlüssel',
  'people.user': 'Person',
  'people.rights': 'Rechte',
  'people.created': 'Eingeladen',
  'people.createdBy': '{when}, von {user}',
  'people.expires': 'Läuft ab',
  'people.never': 'nie',
  'people.days': { one: 'in {count} Tag', other: 'in {count} Tagen' },
  'people.name': 'Name oder E-Mail-Adresse',
  'people.may': 'Diese Person darf',
  'people.create': 'Link erstellen',
  'people.createdTitle': 'Einladung für {user}',
  'people.once':
    'Senden Sie diesen Link an die Person. Er wird nur jetzt angezeigt und gilt einmal innerhalb von {count} Tagen.',
  'people.link': 'Link',
  'people.invitedUntil': 'eingeladen bis {when}',
  'people.loopback':
    'Diese Adresse ist nur auf diesem Rechner erreichbar. Starten Sie Banksman für andere mit {command} auf einer Adresse Ihres Netzes.',
  'people.done': 'Fertig',
  'people.means': 'Diese Person meldet sich an mit',
  'people.byKey': 'einem Schlüssel',
  'people.byAccount': 'einem Konto bei {provider}',
  'people.accountNeeds':
    'Eine Administratorin oder ein Administrator von {provider} muss dem Konto der Person Folgendes geben. Andere Rollen dort können Rechte hinzufügen.',
  'people.noRoleNeeded': 'Ein Konto bei {provider} ohne den Claim {claim} hat genau diese Rechte.',
  'people.needs.role': 'Rolle, im Claim {claim}',
  'people.needs.tenant': 'Mandant, im Claim {claim}',
  'people.noRole': 'Keine Rolle bei {provider} gibt genau diese Rechte. Es gibt diese Rollen:',
  'people.accountMessage': 'Öffnen Sie {address} und melden Sie sich mit Ihrem Konto bei {provider} an.',
  'people.claimsMessage':
    'Öffnen Sie {address} und melden Sie sich mit Ihrem Konto bei {provider} an, das dort vorher von der Verwaltung {claims} bekommt.',
  'people.given.role': 'die Rolle {value} (Claim {claim})',
  'people.given.tenant': 'den Mandanten {value} (Claim {claim})',
  'people.copyInvitation': 'Alles als Nachricht kopieren',
  'people.withdraw': 'Entziehen',
  'people.withdrawOf': 'Den Schlüssel von {user} entziehen',
  'people.withdrawTitle': 'Schlüssel entziehen',
  'people.withdrawQuestion': '{user} wird sofort abgemeldet, und der Schlüssel gilt nicht mehr.',
};
