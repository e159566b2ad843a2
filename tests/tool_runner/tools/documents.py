"""Makes one small document of each format that `read_file` reads, and of one that it does not."""

from __future__ import annotations

import io
import zipfile

_OFFICE = "http://schemas.openxmlformats.org"
_ODF = "urn:oasis:names:tc:opendocument:xmlns"
_TYPES = f'<Types xmlns="{_OFFICE}/package/2006/content-types">'
_RELATIONS = f'<Relationships xmlns="{_OFFICE}/package/2006/relationships">'
_KIND = f"{_OFFICE}/officeDocument/2006/relationships"


def pdf(*pages: str) -> bytes:
    """Return a PDF with one line of text on each page; https://www.iso.org/standard/75839.html."""
    streams = [f"BT /F 12 Tf 72 700 Td ({text}) Tj ET".encode("cp1252") for text in pages]
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(pages)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>".encode(),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
    ]
    for index, stream in enumerate(streams):
        page = (
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F 3 0 R>>>>"
            f"/Contents {5 + 2 * index} 0 R>>"
        )
        objects += [page.encode(), b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream)]
    data, starts = b"%PDF-1.4\n", list[int]()
    for number, body in enumerate(objects, 1):
        starts.append(len(data))
        data += b"%d 0 obj%s endobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % start for start in starts)
    end = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(data))
    return data + b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + table + end


def docx(text: str) -> bytes:
    body = f"<w:body><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:body>"
    main = f'<w:document xmlns:w="{_OFFICE}/wordprocessingml/2006/main">{body}</w:document>'
    return _office("word/document.xml", "wordprocessingml.document", main)


def xlsx(**sheets: str) -> bytes:
    """Return a workbook with one cell of text in each sheet, by the name of the sheet."""
    listed = "".join(
        f'<sheet name="{name}" sheetId="{number}" r:id="r{number}"/>' for number, name in enumerate(sheets, 1)
    )
    names = f'xmlns="{_OFFICE}/spreadsheetml/2006/main" xmlns:r="{_KIND}"'
    book = f"<workbook {names}><sheets>{listed}</sheets></workbook>"
    links, more = "", dict[str, str]()
    for number, text in enumerate(sheets.values(), 1):
        target = f"worksheets/sheet{number}.xml"
        links += f'<Relationship Id="r{number}" Type="{_KIND}/worksheet" Target="{target}"/>'
        cell = f'<c r="A1" t="inlineStr"><is><t>{text}</t></is></c>'
        rows = f'<sheetData><row r="1">{cell}</row></sheetData>'
        more[f"xl/{target}"] = f'<worksheet xmlns="{_OFFICE}/spreadsheetml/2006/main">{rows}</worksheet>'
    more["xl/_rels/workbook.xml.rels"] = f"{_RELATIONS}{links}</Relationships>"
    return _office("xl/workbook.xml", "spreadsheetml.sheet", book, more)


def pptx(*slides: str) -> bytes:
    names = {"a": f"{_OFFICE}/drawingml/2006/main", "p": f"{_OFFICE}/presentationml/2006/main", "r": _KIND}
    declared = " ".join(f'xmlns:{prefix}="{name}"' for prefix, name in names.items())
    ids = "".join(f'<p:sldId id="{256 + index}" r:id="r{index}"/>' for index in range(len(slides)))
    main = f"<p:presentation {declared}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>"
    links = "".join(
        f'<Relationship Id="r{index}" Type="{_KIND}/slide" Target="slides/slide{index + 1}.xml"/>'
        for index in range(len(slides))
    )
    more = {"ppt/_rels/presentation.xml.rels": f"{_RELATIONS}{links}</Relationships>"}
    for index, text in enumerate(slides, 1):
        shape = (
            f"<p:sp><p:nvSpPr/><p:spPr/><p:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:txBody></p:sp>"
        )
        more[f"ppt/slides/slide{index}.xml"] = (
            f"<p:sld {declared}><p:cSld><p:spTree>{shape}</p:spTree></p:cSld></p:sld>"
        )
    return _office("ppt/presentation.xml", "presentationml.presentation", main, more)


def odt(text: str) -> bytes:
    return _open_document("text", f"<office:text><text:p>{text}</text:p></office:text>")


def ods(**sheets: str) -> bytes:
    """Return a workbook with one cell of text in each sheet, by the name of the sheet."""
    tables = "".join(
        f'<table:table table:name="{name}"><table:table-row><table:table-cell office:value-type="string">'
        f"<text:p>{text}</text:p></table:table-cell></table:table-row></table:table>"
        for name, text in sheets.items()
    )
    return _open_document("spreadsheet", f"<office:spreadsheet>{tables}</office:spreadsheet>")


def odp(text: str) -> bytes:
    box = f"<draw:frame><draw:text-box><text:p>{text}</text:p></draw:text-box></draw:frame>"
    page = f'<draw:page draw:name="1">{box}</draw:page>'
    return _open_document("presentation", f"<office:presentation>{page}</office:presentation>")


def epub(*chapters: str) -> bytes:
    """Return a book with one paragraph in each chapter; https://www.w3.org/TR/epub-33/."""
    book_type = "application/oebps-package+xml"
    root = f'<rootfiles><rootfile full-path="book.opf" media-type="{book_type}"/></rootfiles>'
    container = f'<container version="1.0" xmlns="{_ODF}:container">{root}</container>'
    count = range(len(chapters))
    items = "".join(f'<item id="c{n}" href="c{n}.xhtml" media-type="application/xhtml+xml"/>' for n in count)
    spine = "".join(f'<itemref idref="c{n}"/>' for n in count)
    named = "<dc:identifier id='i'>x</dc:identifier><dc:title>Beams</dc:title><dc:language>en</dc:language>"
    book = (
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="i">'
        f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">{named}</metadata>'
        f"<manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    files = {"mimetype": "application/epub+zip", "META-INF/container.xml": container, "book.opf": book}
    for number, text in enumerate(chapters):
        head = f"<head><title>{number}</title></head>"
        page = f'<html xmlns="http://www.w3.org/1999/xhtml">{head}<body><p>{text}</p></body></html>'
        files[f"c{number}.xhtml"] = page
    return _zipped(files)


def rtf(text: str) -> bytes:
    return b"{\\rtf1\\ansi\\ansicpg1252 " + text.encode("cp1252") + b"\\par}"


def _open_document(kind: str, body: str) -> bytes:
    parts = {"office": "office", "text": "text", "table": "table", "draw": "drawing"}
    names = " ".join(f'xmlns:{prefix}="{_ODF}:{part}:1.0"' for prefix, part in parts.items())
    content = f"<office:document-content {names}><office:body>{body}</office:body></office:document-content>"
    media_type = f"application/vnd.oasis.opendocument.{kind}"
    entry = f'<manifest:file-entry manifest:full-path="/" manifest:media-type="{media_type}"/>'
    manifest = f'<manifest:manifest xmlns:manifest="{_ODF}:manifest:1.0">{entry}</manifest:manifest>'
    return _zipped({"mimetype": media_type, "content.xml": content, "META-INF/manifest.xml": manifest})


def _office(path: str, kind: str, main: str, more: dict[str, str] | None = None) -> bytes:
    main_type = f"application/vnd.openxmlformats-officedocument.{kind}.main+xml"
    types = f'<Override PartName="/{path}" ContentType="{main_type}"/>'
    default = (
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    )
    link = f'<Relationship Id="r1" Type="{_KIND}/officeDocument" Target="{path}"/>'
    files = {
        "[Content_Types].xml": f"{_TYPES}{default}{types}</Types>",
        "_rels/.rels": f"{_RELATIONS}{link}</Relationships>",
        path: main,
    }
    return _zipped(files | (more or {}))


def _zipped(files: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()
