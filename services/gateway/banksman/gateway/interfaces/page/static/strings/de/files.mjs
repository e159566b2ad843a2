/** @satisfies {import("../../strings.mjs").Translation<typeof import("../en/files.mjs").default>} */
export default {
  // Files
  'files.label': 'Dateien',
  'files.all': 'Alle Dateien',
  'files.upload': 'Hochladen',
  'files.download': 'Herunterladen',
  'files.close': 'Dateien schließen',
  'files.actions': 'Aktionen für {path}',
  'files.empty':
    'Der Arbeitsbereich ist leer. Ziehen Sie Dateien hierher, oder lassen Sie den Agenten welche schreiben.',
  'files.tabs': 'Teile des Arbeitsbereichs',
  'files.tab.files': 'Dateien',
  'files.tab.changes': 'Änderungen',
  'files.tab.terminal': 'Terminal',
  'files.downloadAll': 'Alle Dateien herunterladen',
  'files.edit': 'Bearbeiten',
  'files.editing': 'Inhalt von {path}',
  'files.save': 'Speichern',
  'files.saveAnyway': 'Trotzdem speichern',
  'files.changedMeanwhile':
    'Die Datei wurde geändert, seit Sie sie geöffnet haben. Speichern ersetzt diese Änderung.',
  'files.noChanges': 'Der Agent hat noch keine Dateien geändert.',
  'files.notCompared': 'Die Datei ist zu groß für einen Vergleich.',
  'files.notCompared.unknown': 'Der frühere Inhalt der Datei ist nicht bekannt.',
  'files.notCompared.too_large': 'Die Datei ist zu groß für einen Vergleich.',
  'files.notCompared.binary': 'Die Datei ist kein Text.',
  'files.notCompared.no_room': 'Die Änderungen sind zu lang, um sie zu zeigen.',
  'files.unchanged': 'Die Datei ist wie am Anfang.',
  'files.downloadPatch': 'Patch herunterladen',
  'files.tooLarge': '{size} sind zu groß für die Vorschau: bitte herunterladen.',
  'files.notText': 'Kein Text: bitte herunterladen.',
};
