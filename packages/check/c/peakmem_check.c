/*
 * peakmem_check: the second checker of peakmem certificates.
 *
 *     cc -std=c99 -O2 -o peakmem_check peakmem_check.c
 *     peakmem_check PROGRAM CERTIFICATE [--require-optimal] [--trace]
 *     peakmem_check --batch < LINES        each line PROGRAM<TAB>CERTIFICATE
 *
 * It says whether the certificate proves that no order of the program has a peak below a bound. It is written from
 * the definition of the format (docs/reference/format.md) and from the proofs (docs/theory.md), not from the Python
 * checker, so that two readings of one page can be compared. It needs libc only.
 *
 * Exit codes: 0 accepted, 1 refused, 2 bad input or no memory, 3 accepted but not optimal with --require-optimal.
 * With --batch: 0; the answers are lines "accepted L P", "refused", "bad input".
 *
 * Sections: memory and failure, numbers, SHA-256, JSON, programs, digest, graphs, flows, proof nodes, certificate, main.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory and failure ------------------------------------------------------------------------------------------
 * Every allocation hangs in one list, so that a failure anywhere is a longjmp and `release_all`, without leaks. */

enum { ACCEPTED = 0, REFUSED = 1, BAD = 2, NOT_OPTIMAL = 3 };

typedef struct Block {
    struct Block *next, *previous;
} Block;

static Block blocks = {&blocks, &blocks};
static FILE *open_file;
static jmp_buf failure;
static char message[600]; /* why, set before the jump */
static char place[200];   /* where in the certificate: "proofs of body '3/0': node 7 (forward): " */

static void fail(int verdict, const char *format, va_list arguments)
{
    vsnprintf(message, sizeof message, format, arguments);
    longjmp(failure, verdict);
}

static void refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail(REFUSED, format, arguments);
}

static void bad(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail(BAD, format, arguments);
}

/* `count` things of `size` bytes, all zero. */
static void *make(size_t count, size_t size)
{
    Block *block;
    if (size != 0 && count > (SIZE_MAX - sizeof(Block) - 16) / size)
        bad("out of memory");
    block = calloc(1, sizeof(Block) + count * size);
    if (block == NULL)
        bad("out of memory (%lu bytes were asked for)", (unsigned long)(count * size));
    block->next = blocks.next;
    block->previous = &blocks;
    blocks.next->previous = block;
    blocks.next = block;
    return block + 1;
}

static void drop(void *thing)
{
    Block *block;
    if (thing == NULL)
        return;
    block = (Block *)thing - 1;
    block->next->previous = block->previous;
    block->previous->next = block->next;
    free(block);
}

/* Room for `count` things where there was room for `*room`: at least doubles, so that appending is linear. */
static void *grown(void *old, size_t *room, size_t count, size_t size)
{
    size_t more = *room < 8 ? 16 : *room;
    void *thing;
    if (count <= *room)
        return old;
    while (more < count)
        more = more > SIZE_MAX / 2 ? count : more * 2;
    thing = make(more, size);
    if (*room)
        memcpy(thing, old, *room * size);
    drop(old);
    *room = more;
    return thing;
}

static void release_all(void)
{
    if (open_file)
        fclose(open_file);
    open_file = NULL;
    while (blocks.next != &blocks)
        drop(blocks.next + 1);
}

/* ---- numbers -----------------------------------------------------------------------------------------------------
 * The buffers and workspaces of one program sum to less than 2^62, so 64 bits hold what is resident. Bodies enter as
 * workspace and nest 32 deep: a step takes less than 33 * 2^62 < 2^68, so charges, bounds and peaks need a pair of
 * words. A number of the file above 10^38 is read as HUGE, which no sum of ours reaches: it compares as it should. */

#define LIMIT ((uint64_t)1 << 62)

typedef struct {
    uint64_t high, low;
} Wide;

static const Wide HUGE_NUMBER = {UINT64_MAX, UINT64_MAX};

static Wide wide(uint64_t low)
{
    Wide x = {0, 0};
    x.low = low;
    return x;
}

static Wide add(Wide a, Wide b)
{
    Wide x;
    x.low = a.low + b.low;
    x.high = a.high + b.high + (x.low < a.low);
    return x;
}

/* a - b; b is not the larger. */
static Wide subtract(Wide a, Wide b)
{
    Wide x;
    x.low = a.low - b.low;
    x.high = a.high - b.high - (a.low < b.low);
    return x;
}

static int compare(Wide a, Wide b)
{
    if (a.high != b.high)
        return a.high < b.high ? -1 : 1;
    return a.low < b.low ? -1 : a.low > b.low;
}

static Wide times_ten_plus(Wide a, unsigned digit)
{
    uint64_t lower = (a.low & 0xffffffffu) * 10 + digit, upper = (a.low >> 32) * 10 + (lower >> 32);
    Wide x;
    x.low = upper << 32 | (lower & 0xffffffffu);
    x.high = a.high * 10 + (upper >> 32);
    return x;
}

/* Decimal text of a number in a buffer of 44 characters. */
static const char *decimal(Wide x, char *room)
{
    char *end = room + 43;
    *end = 0;
    do { /* long division by ten, 32 bits at a time */
        uint64_t part[4], rest = 0;
        int i;
        part[0] = x.high >> 32, part[1] = x.high & 0xffffffffu;
        part[2] = x.low >> 32, part[3] = x.low & 0xffffffffu;
        for (i = 0; i < 4; i++) {
            rest = rest << 32 | part[i];
            part[i] = rest / 10;
            rest %= 10;
        }
        *--end = (char)('0' + rest);
        x.high = part[0] << 32 | part[1];
        x.low = part[2] << 32 | part[3];
    } while (x.high || x.low);
    return end;
}

/* ---- SHA-256 (FIPS 180-4) ---------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t state[8];
    uint64_t length;
    unsigned char block[64];
} Sha;

static const uint32_t ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turn(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void sha_block(Sha *sha)
{
    uint32_t w[64], h[8], a, b;
    int i;
    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)sha->block[4 * i] << 24 | (uint32_t)sha->block[4 * i + 1] << 16
            | (uint32_t)sha->block[4 * i + 2] << 8 | sha->block[4 * i + 3];
    for (; i < 64; i++)
        w[i] = w[i - 16] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7]
            + (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(h, sha->state, sizeof h);
    for (i = 0; i < 64; i++) {
        a = h[7] + (turn(h[4], 6) ^ turn(h[4], 11) ^ turn(h[4], 25)) + ((h[4] & h[5]) ^ (~h[4] & h[6])) + ROUND[i] + w[i];
        b = (turn(h[0], 2) ^ turn(h[0], 13) ^ turn(h[0], 22)) + ((h[0] & h[1]) ^ (h[0] & h[2]) ^ (h[1] & h[2]));
        memmove(h + 1, h, 7 * sizeof *h);
        h[4] += a;
        h[0] = a + b;
    }
    for (i = 0; i < 8; i++)
        sha->state[i] += h[i];
}

static void sha_start(Sha *sha)
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sha->state, start, sizeof start);
    sha->length = 0;
}

static void sha_add(Sha *sha, const void *data, size_t count)
{
    const unsigned char *bytes = data;
    while (count--) {
        sha->block[sha->length++ % 64] = *bytes++;
        if (sha->length % 64 == 0)
            sha_block(sha);
    }
}

/* Writes "sha256:" and 64 hexadecimal digits, 71 characters and a NUL. */
static void sha_end(Sha *sha, char *text)
{
    uint64_t bits = sha->length * 8;
    unsigned char tail[8];
    int i;
    for (i = 0; i < 8; i++)
        tail[i] = (unsigned char)(bits >> (56 - 8 * i));
    sha_add(sha, "\x80", 1);
    while (sha->length % 64 != 56)
        sha_add(sha, "", 1);
    sha_add(sha, tail, 8);
    strcpy(text, "sha256:");
    for (i = 0; i < 8; i++)
        sprintf(text + 7 + 8 * i, "%08lx", (unsigned long)sha->state[i]);
}

/* ---- JSON --------------------------------------------------------------------------------------------------------
 * A document is its bytes (texts are decoded where they stand: decoding never makes them longer) and one array of
 * values in the order of the file. `end` is the index behind a value and all that is in it, so children are walked
 * without pointers. In an object names and values alternate. */

#define DEEPEST 256
#define MOST_DIGITS 4300
#define LARGEST_FILE ((size_t)1 << 30)

enum { NONE, NIL, FALSE_, TRUE_, INTEGER, REAL, TEXT, LIST, OBJECT };

typedef struct {
    uint32_t kind, start, length, end; /* length: bytes of a text or number, members of a list or object */
} Value;

typedef struct {
    unsigned char *bytes;
    size_t size, at; /* `at`: where the parser stands */
    size_t line, line_start;
    Value *values;
    size_t count, room;
    const char *name; /* of the file, for messages */
} Json;

typedef struct {
    const unsigned char *bytes;
    size_t length;
} Text;

typedef struct {
    Text text;
    uint32_t index;
} Entry; /* of a sorted list of texts */

static void not_json(const Json *json, const char *why)
{
    bad("%.300s: line %lu, column %lu: not JSON (%s)", json->name, (unsigned long)json->line,
        (unsigned long)(json->at - json->line_start + 1), why);
}

static int compare_texts(Text a, Text b)
{
    int order = memcmp(a.bytes, b.bytes, a.length < b.length ? a.length : b.length);
    return order ? order : a.length < b.length ? -1 : a.length > b.length;
}

static int compare_entries(const void *a, const void *b)
{
    return compare_texts(((const Entry *)a)->text, ((const Entry *)b)->text);
}

/* Sorts entries; returns the place of one that equals the entry before it, 0 if all differ. Sorting rather than
 * hashing: no file can make it slow. */
static size_t sort_entries(Entry *entries, size_t count)
{
    size_t i;
    if (count > 1)
        qsort(entries, count, sizeof *entries, compare_entries);
    for (i = 1; i < count; i++)
        if (compare_entries(entries + i - 1, entries + i) == 0)
            return i;
    return 0;
}

static const Entry *find_entry(const Entry *entries, size_t count, Text text)
{
    Entry wanted;
    wanted.text = text;
    wanted.index = 0;
    return count ? bsearch(&wanted, entries, count, sizeof *entries, compare_entries) : NULL;
}

static Text text_of(const Json *json, uint32_t value)
{
    Text text;
    text.bytes = json->bytes + json->values[value].start;
    text.length = json->values[value].length;
    return text;
}

static int is_text(Text text, const char *wanted)
{
    return text.length == strlen(wanted) && memcmp(text.bytes, wanted, text.length) == 0;
}

/* Well-formed UTF-8 (Unicode 3.9, table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF. */
static void require_utf8(const Json *json)
{
    size_t i = 0;
    while (i < json->size) {
        unsigned char c = json->bytes[i], low = 0x80, high = 0xbf;
        int more, k;
        if (c < 0x80) {
            i++;
            continue;
        }
        more = c >= 0xc2 && c <= 0xdf ? 1 : c >= 0xe0 && c <= 0xef ? 2 : c >= 0xf0 && c <= 0xf4 ? 3 : 0;
        if (c == 0xe0)
            low = 0xa0;
        else if (c == 0xed)
            high = 0x9f;
        else if (c == 0xf0)
            low = 0x90;
        else if (c == 0xf4)
            high = 0x8f;
        for (k = 1; k <= more; k++, low = 0x80, high = 0xbf)
            if (i + (size_t)k >= json->size || json->bytes[i + (size_t)k] < low || json->bytes[i + (size_t)k] > high)
                break;
        if (more == 0 || k <= more)
            bad("%.300s: byte %lu is not UTF-8, so this is not a JSON file", json->name, (unsigned long)i);
        i += (size_t)more + 1;
    }
}

static int peek(const Json *json)
{
    return json->at < json->size ? json->bytes[json->at] : -1;
}

static void skip_space(Json *json)
{
    int c;
    while ((c = peek(json)) == ' ' || c == '\t' || c == '\n' || c == '\r') {
        json->at++;
        if (c == '\n')
            json->line++, json->line_start = json->at;
    }
}

static uint32_t new_value(Json *json, uint32_t kind)
{
    Value *value;
    json->values = grown(json->values, &json->room, json->count + 1, sizeof *json->values);
    value = json->values + json->count;
    value->kind = kind;
    value->start = (uint32_t)json->at;
    value->length = 0;
    value->end = (uint32_t)json->count + 1;
    return (uint32_t)json->count++;
}

static uint32_t hex4(Json *json)
{
    uint32_t code = 0;
    int i;
    for (i = 0; i < 4; i++, json->at++) {
        int c = peek(json);
        code = code << 4;
        if (c >= '0' && c <= '9')
            code |= (uint32_t)(c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            code |= (uint32_t)((c | 32) - 'a' + 10);
        else
            not_json(json, "\\u needs four hexadecimal digits");
    }
    return code;
}

static void parse_text(Json *json)
{
    uint32_t value;
    unsigned char *out;
    json->at++; /* the quote */
    value = new_value(json, TEXT);
    out = json->bytes + json->at;
    for (;;) {
        int c = peek(json);
        uint32_t code;
        if (c < 0x20)
            not_json(json, c < 0 ? "a text does not end" : "a control character in a text");
        json->at++;
        if (c == '"')
            break;
        if (c != '\\') {
            *out++ = (unsigned char)c;
            continue;
        }
        c = peek(json);
        json->at++;
        switch (c) {
        case '"': case '\\': case '/': *out++ = (unsigned char)c; continue;
        case 'b': *out++ = '\b'; continue;
        case 'f': *out++ = '\f'; continue;
        case 'n': *out++ = '\n'; continue;
        case 'r': *out++ = '\r'; continue;
        case 't': *out++ = '\t'; continue;
        case 'u': break;
        default: not_json(json, "an unknown escape");
        }
        code = hex4(json);
        if (code >= 0xd800 && code <= 0xdbff && peek(json) == '\\' && json->at + 1 < json->size && json->bytes[json->at + 1] == 'u') {
            uint32_t second;
            json->at += 2;
            second = hex4(json);
            if (second < 0xdc00 || second > 0xdfff)
                not_json(json, "half a surrogate pair");
            code = 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
        }
        if (code >= 0xd800 && code <= 0xdfff)
            not_json(json, "half a surrogate pair");
        if (code < 0x80)
            *out++ = (unsigned char)code;
        else {
            if (code < 0x800)
                *out++ = (unsigned char)(0xc0 | code >> 6);
            else {
                if (code < 0x10000)
                    *out++ = (unsigned char)(0xe0 | code >> 12);
                else {
                    *out++ = (unsigned char)(0xf0 | code >> 18);
                    *out++ = (unsigned char)(0x80 | (code >> 12 & 63));
                }
                *out++ = (unsigned char)(0x80 | (code >> 6 & 63));
            }
            *out++ = (unsigned char)(0x80 | (code & 63));
        }
    }
    json->values[value].length = (uint32_t)(out - (json->bytes + json->values[value].start));
}

static size_t digits(Json *json)
{
    size_t start = json->at;
    while (peek(json) >= '0' && peek(json) <= '9')
        json->at++;
    if (json->at == start)
        not_json(json, "a digit is missing");
    return json->at - start;
}

static void parse_number(Json *json)
{
    uint32_t value = new_value(json, INTEGER);
    size_t count;
    if (peek(json) == '-')
        json->at++;
    if (peek(json) == '0') {
        json->at++;
        count = 1;
    } else
        count = digits(json);
    if (peek(json) == '.') {
        json->at++;
        digits(json);
        json->values[value].kind = REAL;
    }
    if (peek(json) == 'e' || peek(json) == 'E') {
        json->at++;
        if (peek(json) == '+' || peek(json) == '-')
            json->at++;
        digits(json);
        json->values[value].kind = REAL;
    }
    if (json->values[value].kind == INTEGER && count > MOST_DIGITS)
        bad("%.300s: holds an integer of more than %d digits", json->name, MOST_DIGITS);
    json->values[value].length = (uint32_t)(json->at - json->values[value].start);
}

static void parse_word(Json *json, const char *word, uint32_t kind)
{
    size_t length = strlen(word);
    if (json->size - json->at < length || memcmp(json->bytes + json->at, word, length))
        not_json(json, "a value is expected");
    new_value(json, kind);
    json->at += length;
}

/* No name twice: the names are sorted, once for each object. */
static void require_distinct(const Json *json, uint32_t object)
{
    size_t count = json->values[object].length, i;
    uint32_t at = object + 1;
    Entry few[16], *names = count <= 16 ? few : make(count, sizeof *names);
    for (i = 0; i < count; i++) {
        names[i].text = text_of(json, at);
        names[i].index = at;
        at = json->values[at + 1].end;
    }
    if (sort_entries(names, count))
        bad("%.300s: a name stands twice in one object", json->name);
    if (names != few)
        drop(names);
}

static void parse_value(Json *json, int depth)
{
    int c;
    skip_space(json);
    c = peek(json);
    if (c == '{' || c == '[') {
        uint32_t value = new_value(json, c == '{' ? OBJECT : LIST), count = 0;
        if (depth > DEEPEST)
            bad("%.300s: nests objects and lists more than %d deep", json->name, DEEPEST);
        json->at++;
        skip_space(json);
        if (peek(json) == c + 2) /* '[' and ']', '{' and '}' are two apart in ASCII */
            json->at++;
        else
            for (;; json->at++) {
                if (c == '{') {
                    skip_space(json);
                    if (peek(json) != '"')
                        not_json(json, "a name is expected");
                    parse_text(json);
                    skip_space(json);
                    if (peek(json) != ':')
                        not_json(json, "':' is expected");
                    json->at++;
                }
                parse_value(json, depth + 1);
                count++;
                skip_space(json);
                if (peek(json) == c + 2) {
                    json->at++;
                    break;
                }
                if (peek(json) != ',')
                    not_json(json, "',' is expected");
            }
        json->values[value].length = count;
        json->values[value].end = (uint32_t)json->count;
        if (c == '{')
            require_distinct(json, value);
    } else if (c == '"')
        parse_text(json);
    else if (c == '-' || (c >= '0' && c <= '9'))
        parse_number(json);
    else if (c == 't')
        parse_word(json, "true", TRUE_);
    else if (c == 'f')
        parse_word(json, "false", FALSE_);
    else
        parse_word(json, "null", NIL);
}

static void read_json(Json *json, const char *name)
{
    size_t room = 0, got;
    memset(json, 0, sizeof *json);
    json->name = name;
    json->line = 1;
    open_file = fopen(name, "rb");
    if (open_file == NULL)
        bad("%.300s: cannot be read", name);
    do {
        json->bytes = grown(json->bytes, &room, json->size + 65536, 1);
        got = fread(json->bytes + json->size, 1, room - json->size, open_file);
        json->size += got;
    } while (got && json->size <= LARGEST_FILE);
    if (ferror(open_file))
        bad("%.300s: cannot be read", name);
    fclose(open_file);
    open_file = NULL;
    if (json->size > LARGEST_FILE)
        bad("%.300s: is larger than %lu bytes", name, (unsigned long)LARGEST_FILE);
    require_utf8(json);
    if (json->size >= 3 && memcmp(json->bytes, "\xef\xbb\xbf", 3) == 0)
        json->at = 3;
    parse_value(json, 1);
    skip_space(json);
    if (json->at != json->size)
        not_json(json, "something follows the document");
}

/* The member of an object, 0 if it has none (the document itself is never a member). */
static uint32_t member(const Json *json, uint32_t object, const char *name)
{
    uint32_t at = object + 1, i;
    for (i = 0; i < json->values[object].length; i++, at = json->values[at + 1].end)
        if (is_text(text_of(json, at), name))
            return at + 1;
    return 0;
}

static uint32_t kind_of(const Json *json, uint32_t value)
{
    return value ? json->values[value].kind : NONE;
}

/* A whole number that is not negative into `*number`, HUGE_NUMBER if it has more than 38 digits; 0 if it is none. */
static int whole(const Json *json, uint32_t value, Wide *number)
{
    Text text;
    size_t i;
    if (kind_of(json, value) != INTEGER)
        return 0;
    text = text_of(json, value);
    *number = wide(0);
    if (text.bytes[0] == '-')
        return text.length == 2 && text.bytes[1] == '0';
    if (text.length > 38)
        *number = HUGE_NUMBER;
    else
        for (i = 0; i < text.length; i++)
            *number = times_ten_plus(*number, text.bytes[i] - (unsigned)'0');
    return 1;
}

/* A whole number below `limit`, else `limit`. */
static uint64_t below(const Json *json, uint32_t value, uint64_t limit)
{
    Wide number;
    return whole(json, value, &number) && number.high == 0 && number.low < limit ? number.low : limit;
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

enum { INPUT, CONSTANT, INTERMEDIATE, OUTPUT };

/* Lists of numbers for each of some things: those of i are item[start[i]] up to item[start[i + 1]], ascending. */
typedef struct {
    uint32_t *start, *item;
} Lists;

/* What proofs speak about: a program, its mirror image, or a part of either that a components node cuts out. A part has
 * numbers of its own, in the order of the ids that its statements and buffers have in the file. */
typedef struct Side {
    uint32_t n, m; /* statements, buffers */
    uint64_t *bytes;
    unsigned char *counted, *entry, *pinned; /* of buffers; counted: not a constant */
    Lists before, touches, touchers;
    Lists inputs;    /* of the overlay of each statement, as listed (they need not ascend) */
    uint64_t *saved; /* of each of these: min(its bytes, those of the overlay's output) */
    Wide *workspace; /* with the proved bounds of bodies */
    uint32_t *ids, *buffer_ids; /* of a part, ascending; NULL: they are the numbers */
    uint32_t whole;             /* statements of the program of which this is a part */
    struct Side *mirror;        /* NULL until asked for */
    int mirrored;
} Side;

typedef struct {
    char path[720]; /* "3/0/1/2": body 2 of statement 1 of body 0 of statement 3 */
    Side side;
    uint64_t *own;        /* workspaces without bodies */
    uint32_t outer, at;   /* the part and the statement around it */
    Wide bound, peak;     /* proved; of the order given */
    Wide *inside;         /* largest peak of the bodies of each statement */
} Part;

typedef struct {
    Json json;
    Part **parts; /* a part before its bodies; parts[0] is the program */
    size_t count, room;
    int overlays; /* whether any part has one */
} Program;

static int compare_numbers(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts `items` and keeps each once; returns how many. */
static uint32_t sorted_once(uint32_t *items, uint32_t count)
{
    uint32_t i, kept = 0;
    if (count > 1)
        qsort(items, count, sizeof *items, compare_numbers);
    for (i = 0; i < count; i++)
        if (kept == 0 || items[kept - 1] != items[i])
            items[kept++] = items[i];
    return kept;
}

static int contains(Lists lists, uint32_t i, uint32_t wanted)
{
    uint32_t low = lists.start[i], high = lists.start[i + 1];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (lists.item[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low < lists.start[i + 1] && lists.item[low] == wanted;
}

/* Room for lists of n things with `count` items in all. */
static void new_lists(Lists *lists, uint32_t n, size_t count)
{
    lists->start = make((size_t)n + 2, sizeof *lists->start);
    lists->item = make(count + 1, sizeof *lists->item);
}

/* From the lists of `n` things over `m` others, the lists of the others over the things. */
static Lists transposed(Lists lists, uint32_t n, uint32_t m)
{
    Lists result;
    uint32_t i, k, *fill = make((size_t)m + 1, sizeof *fill);
    result.start = make((size_t)m + 2, sizeof *result.start);
    result.item = make((size_t)lists.start[n] + 1, sizeof *result.item);
    for (k = 0; k < lists.start[n]; k++)
        result.start[lists.item[k] + 1]++;
    for (i = 0; i < m; i++)
        result.start[i + 1] += result.start[i];
    memcpy(fill, result.start, (size_t)m * sizeof *fill);
    for (i = 0; i < n; i++)
        for (k = lists.start[i]; k < lists.start[i + 1]; k++)
            result.item[fill[lists.item[k]]++] = i;
    drop(fill);
    return result;
}

static Text default_text(const Json *json, uint32_t value, const char *otherwise)
{
    Text text;
    if (value)
        return text_of(json, value);
    text.bytes = (const unsigned char *)otherwise;
    text.length = strlen(otherwise);
    return text;
}

static uint32_t optional(const Json *json, uint32_t object, const char *name, uint32_t kind, const char *where)
{
    uint32_t value = member(json, object, name), found = kind_of(json, value);
    if (found != NONE && found != kind && !(kind == TRUE_ && found == FALSE_))
        bad("%.300s: %s: '%s' is not of its type", json->name, where, name);
    return value;
}

static uint64_t size_member(const Json *json, uint32_t object, const char *name, const char *where, int needed)
{
    uint32_t value = member(json, object, name);
    uint64_t size = value || needed ? below(json, value, LIMIT) : 0;
    if (size == LIMIT)
        bad("%.300s: %s: '%s' must be a whole number below 2^62", json->name, where, name);
    return size;
}

static int kind_of_buffer(const Json *json, uint32_t buffer)
{
    static const char *const names[] = {"input", "constant", "intermediate", "output"};
    Text text = default_text(json, member(json, buffer, "kind"), "intermediate");
    int kind;
    for (kind = 0; kind < 4; kind++)
        if (is_text(text, names[kind]))
            return kind;
    return -1;
}

/* Appends the indices that a list of ids names; returns the new length. */
static uint32_t named(const Json *json, uint32_t list, const Entry *known, size_t count, uint32_t limit, uint32_t **items,
    size_t *room, uint32_t length, const char *where)
{
    uint32_t i, at = list + 1;
    for (i = 0; list && i < json->values[list].length; i++, at = json->values[at].end) {
        const Entry *entry = kind_of(json, at) == TEXT ? find_entry(known, count, text_of(json, at)) : NULL;
        if (entry == NULL || entry->index >= limit)
            bad("%.300s: %s: names what is unknown or listed later", json->name, where);
        *items = grown(*items, room, (size_t)length + 1, sizeof **items);
        (*items)[length++] = entry->index;
    }
    return length;
}

static Entry *ids_of(const Json *json, uint32_t list, const char *where)
{
    uint32_t count = json->values[list].length, i, at = list + 1;
    Entry *ids = make((size_t)count + 1, sizeof *ids);
    for (i = 0; i < count; i++, at = json->values[at].end) {
        uint32_t id = kind_of(json, at) == OBJECT ? member(json, at, "id") : 0;
        if (kind_of(json, id) != TEXT)
            bad("%.300s: %s[%lu]: must be an object with 'id', a text", json->name, where, (unsigned long)i);
        ids[i].text = text_of(json, id);
        ids[i].index = i;
    }
    if (sort_entries(ids, count))
        bad("%.300s: %s: an id stands twice", json->name, where);
    return ids;
}

/* The overlay of statement i, if it has one: appends its inputs and puts its output down. What the rest of the
 * program must say for it to be one is asked later, in `require_overlays`. */
static void read_overlay(const Json *json, uint32_t statement, uint32_t i, const Entry *known, Side *side, size_t *room,
    uint32_t *output)
{
    uint32_t overlay = optional(json, statement, "overlay", OBJECT, "statements"), from = side->inputs.start[i], to = from, k, list;
    const Entry *entry;
    side->inputs.start[i + 1] = from;
    if (!overlay)
        return;
    list = member(json, overlay, "output");
    entry = kind_of(json, list) == TEXT ? find_entry(known, side->m, text_of(json, list)) : NULL;
    if (entry == NULL)
        bad("%.300s: statements[%lu]: the overlay's 'output' must be the id of a buffer", json->name, (unsigned long)i);
    output[i] = entry->index;
    list = member(json, overlay, "inputs");
    if (kind_of(json, list) != LIST || json->values[list].length == 0)
        bad("%.300s: statements[%lu]: the overlay's 'inputs' must list a buffer", json->name, (unsigned long)i);
    to = named(json, list, known, side->m, side->m, &side->inputs.item, room, from, "the overlay's 'inputs'");
    side->inputs.start[i + 1] = to;
    if (to - from > 1) {
        uint32_t *sorted = make(to - from, sizeof *sorted);
        memcpy(sorted, side->inputs.item + from, (to - from) * sizeof *sorted);
        k = sorted_once(sorted, to - from);
        drop(sorted);
        if (k < to - from)
            bad("%.300s: statements[%lu]: the overlay's 'inputs' list a buffer twice", json->name, (unsigned long)i);
    }
}

static void require_sense(const Json *json, Side *side, const Lists *writes, const uint32_t *output);

/* Reads the program that is `value`; its bodies are read when their turn comes. */
static void read_part(Program *program, uint32_t value, Part *part, int depth, uint32_t **bodies, size_t *bodies_room)
{
    const Json *json = &program->json;
    Side *side = &part->side;
    uint32_t buffers, statements, i, k, at, count, *output; /* output: of each statement's overlay */
    uint64_t total = 0;
    Entry *buffer_ids, *statement_ids;
    Lists writes;
    size_t touch_room = 0, before_room = 0, write_room = 0, input_room = 0;
    if (depth > 32)
        bad("%.300s: bodies nest more than 32 deep", json->name);
    if (kind_of(json, value) != OBJECT && !(value == 0 && json->values[0].kind == OBJECT))
        bad("%.300s: a program must be an object", json->name);
    i = member(json, value, "schema");
    if (kind_of(json, i) != TEXT || !is_text(text_of(json, i), "peakmem.program/1"))
        bad("%.300s: 'schema' must be 'peakmem.program/1'", json->name);
    optional(json, value, "name", TEXT, "program");
    i = optional(json, value, "quantity", TEXT, "program");
    if (i && !is_text(text_of(json, i), "live_peak") && !is_text(text_of(json, i), "bytes_above_entry"))
        bad("%.300s: 'quantity' must be 'live_peak' or 'bytes_above_entry'", json->name);
    buffers = member(json, value, "buffers");
    statements = member(json, value, "statements");
    if (kind_of(json, buffers) != LIST || kind_of(json, statements) != LIST)
        bad("%.300s: 'buffers' and 'statements' must be lists", json->name);
    side->m = json->values[buffers].length;
    side->n = side->whole = json->values[statements].length;

    buffer_ids = ids_of(json, buffers, "buffers");
    side->bytes = make((size_t)side->m + 1, sizeof *side->bytes);
    side->counted = make((size_t)side->m + 1, 1);
    side->entry = make((size_t)side->m + 1, 1);
    side->pinned = make((size_t)side->m + 1, 1);
    for (i = 0, at = buffers + 1; i < side->m; i++, at = json->values[at].end) {
        int kind;
        uint32_t pinned;
        optional(json, at, "kind", TEXT, "buffers");
        pinned = optional(json, at, "pinned", TRUE_, "buffers");
        kind = kind_of_buffer(json, at);
        if (kind < 0)
            bad("%.300s: buffers[%lu]: 'kind' must be input, constant, intermediate or output", json->name, (unsigned long)i);
        side->bytes[i] = size_member(json, at, "bytes", "buffers", 1);
        side->counted[i] = kind != CONSTANT;
        side->entry[i] = kind == INPUT;
        side->pinned[i] = pinned ? kind_of(json, pinned) == TRUE_ : kind == OUTPUT;
        total += side->bytes[i]; /* both below 2^62 */
        if (total >= LIMIT)
            bad("%.300s: the sizes sum to 2^62 bytes or more", json->name);
    }

    statement_ids = ids_of(json, statements, "statements");
    part->own = make((size_t)side->n + 1, sizeof *part->own);
    side->workspace = make((size_t)side->n + 1, sizeof *side->workspace);
    part->inside = make((size_t)side->n + 1, sizeof *part->inside);
    side->touches.start = make((size_t)side->n + 2, sizeof(uint32_t));
    side->before.start = make((size_t)side->n + 2, sizeof(uint32_t));
    side->inputs.start = make((size_t)side->n + 2, sizeof(uint32_t));
    writes.start = make((size_t)side->n + 2, sizeof(uint32_t));
    output = make((size_t)side->n + 1, sizeof *output);
    side->inputs.item = grown(NULL, &input_room, 1, sizeof(uint32_t));
    side->touches.item = grown(NULL, &touch_room, 1, sizeof(uint32_t));
    side->before.item = grown(NULL, &before_room, 1, sizeof(uint32_t));
    writes.item = grown(NULL, &write_room, 1, sizeof(uint32_t));
    for (i = 0, at = statements + 1; i < side->n; i++, at = json->values[at].end) {
        uint32_t reads = optional(json, at, "reads", LIST, "statements"), list;
        uint32_t *start = side->touches.start, kept;
        optional(json, at, "op", TEXT, "statements");
        optional(json, at, "pure", TRUE_, "statements");
        list = optional(json, at, "effects", LIST, "statements");
        for (k = 0; list && k < json->values[list].length; k++) /* texts only, so each is one value */
            if (list + 1 + k >= json->values[list].end || kind_of(json, list + 1 + k) != TEXT)
                bad("%.300s: statements[%lu]: 'effects' must list texts", json->name, (unsigned long)i);
        part->own[i] = size_member(json, at, "workspace", "statements", 0);
        size_member(json, at, "cost", "statements", 0);
        total += part->own[i];
        if (total >= LIMIT)
            bad("%.300s: the sizes sum to 2^62 bytes or more", json->name);
        list = optional(json, at, "writes", LIST, "statements");
        count = named(json, list, buffer_ids, side->m, side->m, &writes.item, &write_room, writes.start[i], "'writes'");
        writes.start[i + 1] = writes.start[i] + sorted_once(writes.item + writes.start[i], count - writes.start[i]);
        count = named(json, reads, buffer_ids, side->m, side->m, &side->touches.item, &touch_room, start[i], "'reads'");
        count = named(json, list, buffer_ids, side->m, side->m, &side->touches.item, &touch_room, count, "'writes'");
        for (k = kept = start[i]; k < count; k++)
            if (side->counted[side->touches.item[k]])
                side->touches.item[kept++] = side->touches.item[k];
        start[i + 1] = start[i] + sorted_once(side->touches.item + start[i], kept - start[i]);
        list = optional(json, at, "dependences", LIST, "statements");
        start = side->before.start;
        count = named(json, list, statement_ids, side->n, i, &side->before.item, &before_room, start[i], "'dependences'");
        start[i + 1] = start[i] + sorted_once(side->before.item + start[i], count - start[i]);
        read_overlay(json, at, i, buffer_ids, side, &input_room, output);
        list = optional(json, at, "bodies", LIST, "statements");
        if (list) {
            uint32_t body = list + 1;
            for (k = 0; k < json->values[list].length; k++, body = json->values[body].end) {
                Part *inner = make(1, sizeof *inner);
                size_t b = program->count;
                program->parts = grown(program->parts, &program->room, b + 1, sizeof *program->parts);
                *bodies = grown(*bodies, bodies_room, b + 1, sizeof **bodies);
                (*bodies)[b] = body;
                program->parts[b] = inner;
                program->count++;
                inner->at = i;
                sprintf(inner->path, "%.690s%s%lu/%lu", part->path, *part->path ? "/" : "", (unsigned long)i, (unsigned long)k);
            }
        }
    }
    side->touchers = transposed(side->touches, side->n, side->m);
    require_sense(json, side, &writes, output);
    program->overlays |= side->inputs.start[side->n] > 0;
    drop(buffer_ids);
    drop(statement_ids);
    drop(writes.start);
    drop(writes.item);
    drop(output);
}

static void read_program(Program *program, const char *name)
{
    uint32_t *values = NULL, *depth = NULL; /* of each part: where it stands in the file, and how deep */
    size_t values_room = 0, depth_room = 0, i, k;
    memset(program, 0, sizeof *program);
    read_json(&program->json, name);
    if (program->json.values[0].kind != OBJECT)
        bad("%.300s: must hold an object with 'schema': 'peakmem.program/1'", name);
    program->parts = grown(NULL, &program->room, 1, sizeof *program->parts);
    values = grown(NULL, &values_room, 1, sizeof *values);
    program->parts[0] = make(1, sizeof(Part));
    program->count = 1;
    for (i = 0; i < program->count; i++) {
        size_t first = program->count;
        depth = grown(depth, &depth_room, i + 1, sizeof *depth);
        read_part(program, values[i], program->parts[i], (int)depth[i], &values, &values_room);
        depth = grown(depth, &depth_room, program->count, sizeof *depth);
        for (k = first; k < program->count; k++) {
            program->parts[k]->outer = (uint32_t)i;
            depth[k] = depth[i] + 1;
        }
    }
    drop(values);
    drop(depth);
}

/* ---- digest ------------------------------------------------------------------------------------------------------
 * The canonical text goes straight into the hash, from the document that was found well formed. Names stand in the
 * order of the alphabet. */

static void put(Sha *sha, const char *text)
{
    sha_add(sha, text, strlen(text));
}

static void put_unit(Sha *sha, unsigned long unit)
{
    char escape[8];
    sprintf(escape, "\\u%04lx", unit & 0xffff);
    put(sha, escape);
}

static void put_text(Sha *sha, Text text)
{
    size_t i = 0;
    put(sha, "\"");
    while (i < text.length) {
        unsigned char c = text.bytes[i++];
        if (c == '"' || c == '\\') {
            put(sha, "\\");
            sha_add(sha, &c, 1);
        } else if (c >= 0x20 && c < 0x7f)
            sha_add(sha, &c, 1);
        else if (c < 0x80) {
            static const char letters[] = "btn\0fr"; /* of 8, 9, 10, 12, 13 */
            char short_form[3] = {'\\', 0, 0};
            if (c >= 8 && c <= 13 && c != 11) {
                short_form[1] = letters[c - 8];
                put(sha, short_form);
            } else
                put_unit(sha, c);
        } else { /* UTF-8 that was found well formed */
            int more = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
            unsigned long code = c & (0x3fu >> more);
            while (more--)
                code = code << 6 | (text.bytes[i++] & 0x3fu);
            if (code > 0xffff) {
                put_unit(sha, 0xd800 + ((code - 0x10000) >> 10));
                code = 0xdc00 + ((code - 0x10000) & 0x3ff);
            }
            put_unit(sha, code);
        }
    }
    put(sha, "\"");
}

static void put_number(Sha *sha, const Json *json, uint32_t value)
{
    Wide number = {0, 0};
    char room[44];
    if (value)
        whole(json, value, &number);
    put(sha, decimal(number, room));
}

static void put_truth(Sha *sha, int truth)
{
    put(sha, truth ? "true" : "false");
}

static void put_texts(Sha *sha, const Json *json, uint32_t list)
{
    uint32_t k;
    put(sha, "[");
    for (k = 0; list && k < json->values[list].length; k++) {
        put(sha, k ? "," : "");
        put_text(sha, text_of(json, list + 1 + k));
    }
    put(sha, "]");
}

static void put_program(Sha *sha, const Json *json, uint32_t value, int outermost)
{
    uint32_t list = member(json, value, "buffers"), at, i, k, found;
    put(sha, "{\"buffers\":[");
    for (i = 0, at = list + 1; i < json->values[list].length; i++, at = json->values[at].end) {
        found = member(json, at, "pinned");
        put(sha, i ? ",{\"bytes\":" : "{\"bytes\":");
        put_number(sha, json, member(json, at, "bytes"));
        put(sha, ",\"id\":");
        put_text(sha, text_of(json, member(json, at, "id")));
        put(sha, ",\"kind\":");
        put_text(sha, default_text(json, member(json, at, "kind"), "intermediate"));
        put(sha, ",\"pinned\":");
        put_truth(sha, found ? kind_of(json, found) == TRUE_ : kind_of_buffer(json, at) == OUTPUT);
        put(sha, "}");
    }
    put(sha, "],");
    if (!outermost) {
        put(sha, "\"name\":");
        put_text(sha, default_text(json, member(json, value, "name"), ""));
        put(sha, ",");
    }
    put(sha, "\"schema\":\"peakmem.program/1\",\"statements\":[");
    list = member(json, value, "statements");
    for (i = 0, at = list + 1; i < json->values[list].length; i++, at = json->values[at].end) {
        uint32_t effects = member(json, at, "effects"), body;
        put(sha, i ? ",{" : "{");
        found = member(json, at, "bodies");
        if (found && json->values[found].length) {
            put(sha, "\"bodies\":[");
            for (k = 0, body = found + 1; k < json->values[found].length; k++, body = json->values[body].end) {
                put(sha, k ? "," : "");
                put_program(sha, json, body, 0);
            }
            put(sha, "],");
        }
        put(sha, "\"cost\":");
        put_number(sha, json, member(json, at, "cost"));
        put(sha, ",\"dependences\":");
        put_texts(sha, json, member(json, at, "dependences"));
        put(sha, ",\"effects\":");
        put_texts(sha, json, effects);
        put(sha, ",\"id\":");
        put_text(sha, text_of(json, member(json, at, "id")));
        put(sha, ",\"op\":");
        put_text(sha, default_text(json, member(json, at, "op"), ""));
        found = member(json, at, "overlay");
        if (found) {
            put(sha, ",\"overlay\":{\"inputs\":");
            put_texts(sha, json, member(json, found, "inputs"));
            put(sha, ",\"output\":");
            put_text(sha, text_of(json, member(json, found, "output")));
            put(sha, "}");
        }
        put(sha, ",\"pure\":");
        found = member(json, at, "pure");
        put_truth(sha, found ? kind_of(json, found) == TRUE_ : !effects || json->values[effects].length == 0);
        put(sha, ",\"reads\":");
        put_texts(sha, json, member(json, at, "reads"));
        put(sha, ",\"workspace\":");
        put_number(sha, json, member(json, at, "workspace"));
        put(sha, ",\"writes\":");
        put_texts(sha, json, member(json, at, "writes"));
        put(sha, "}");
    }
    put(sha, "]}");
}

/* ---- graphs ------------------------------------------------------------------------------------------------------
 * A context's DAG is kept as what was added to another one (`Graph`); only the one at hand is written out (`Dag`),
 * with lists of direct predecessors and successors. Ancestors and descendants are searched when asked for, and tabulated as
 * bit sets where a DAG that is not too large is asked often. */

#ifndef OFTEN /* tests set it to 1, so that small programs are searched and tabulated */
#define OFTEN 64
#endif
#define TABULATED 16384 /* statements: 32 MiB for each of the two tables */

enum { BEFORE, AFTER };

typedef struct Graph {
    Side *side;
    struct Graph *base; /* NULL: the side's own dependences */
    uint32_t *arcs;     /* pairs: before, after */
    uint32_t count;     /* of arcs */
    size_t added;       /* arcs, with those of the bases */
    int cyclic;
    uint32_t number; /* of a graph of a whole program, else 0 */
    char key[72];    /* of a graph of a part, "" until asked for */
} Graph;

typedef struct {
    const Side *side;
    Lists before, after;
    uint64_t *table[2]; /* rows of strict ancestors, of strict descendants; NULL if there is none */
    uint32_t searches[2], words;
    uint32_t *rank;        /* place in one topological order */
    uint32_t *births, *births_start, *births_count; /* of buffers, as far as known: births_count is 0 where not */
    size_t births_length, births_room;
    uint32_t *stack;       /* for searches */
    uint32_t *seen, stamp; /* visited in search number `stamp` */
    int cyclic;
} Dag;

static void dag_searches(Dag *dag)
{
    dag->stack = make((size_t)dag->side->n + 1, sizeof *dag->stack);
    dag->seen = make((size_t)dag->side->n + 1, sizeof *dag->seen);
    dag->stamp = 0;
}

static void next_stamp(Dag *dag)
{
    if (++dag->stamp == 0) { /* after 2^32 searches */
        memset(dag->seen, 0, (size_t)dag->side->n * sizeof *dag->seen);
        dag->stamp = 1;
    }
}

/* A topological order, as ranks (Kahn); sets `cyclic` where there is none. */
static void rank(Dag *dag)
{
    uint32_t n = dag->side->n, v, k, done = 0, ready = 0, *missing = make((size_t)n + 1, sizeof *missing);
    dag->rank = make((size_t)n + 1, sizeof *dag->rank);
    for (v = 0; v < n; v++)
        if ((missing[v] = dag->before.start[v + 1] - dag->before.start[v]) == 0)
            dag->stack[ready++] = v;
    while (done < ready) {
        v = dag->stack[done];
        dag->rank[v] = done++;
        for (k = dag->after.start[v]; k < dag->after.start[v + 1]; k++)
            if (--missing[dag->after.item[k]] == 0)
                dag->stack[ready++] = dag->after.item[k];
    }
    dag->cyclic = done < n;
    drop(missing);
}

static Dag *new_dag(const Graph *graph)
{
    Dag *dag = make(1, sizeof *dag);
    const Graph *g;
    const Side *side = graph->side;
    uint32_t n = side->n, v, k, *extra = make((size_t)n + 2, sizeof *extra);
    size_t total = side->before.start[n];
    for (g = graph; g; g = g->base)
        for (k = 0; k < g->count; k++, total++)
            extra[g->arcs[2 * k + 1] + 1]++;
    if (total > UINT32_MAX / 2)
        bad("out of memory (more than 2^31 precedences)");
    dag->side = side;
    dag->before.start = make((size_t)n + 2, sizeof(uint32_t));
    dag->before.item = make(total + 1, sizeof(uint32_t));
    for (v = 0; v < n; v++) /* room first; `extra` becomes the place of the next added arc */
        dag->before.start[v + 1] = dag->before.start[v] + side->before.start[v + 1] - side->before.start[v] + extra[v + 1];
    for (v = 0; v < n; v++) {
        uint32_t own = side->before.start[v + 1] - side->before.start[v];
        memcpy(dag->before.item + dag->before.start[v], side->before.item + side->before.start[v], own * sizeof(uint32_t));
        extra[v] = dag->before.start[v] + own;
    }
    for (g = graph; g; g = g->base)
        for (k = 0; k < g->count; k++)
            dag->before.item[extra[g->arcs[2 * k + 1]]++] = g->arcs[2 * k];
    for (v = 0, total = 0; v < n; v++) { /* an arc may have been added twice */
        uint32_t from = dag->before.start[v], count = sorted_once(dag->before.item + from, dag->before.start[v + 1] - from);
        memmove(dag->before.item + total, dag->before.item + from, count * sizeof(uint32_t));
        dag->before.start[v] = (uint32_t)total;
        total += count;
    }
    dag->before.start[n] = (uint32_t)total;
    dag->after = transposed(dag->before, n, n);
    dag->births_start = make((size_t)side->m + 1, sizeof(uint32_t));
    dag->births_count = make((size_t)side->m + 1, sizeof(uint32_t));
    dag_searches(dag);
    rank(dag);
    drop(extra);
    return dag;
}

static void drop_dag(Dag *dag)
{
    if (dag == NULL)
        return;
    drop(dag->before.start), drop(dag->before.item), drop(dag->after.start), drop(dag->after.item);
    drop(dag->rank), drop(dag->stack), drop(dag->seen), drop(dag->table[BEFORE]), drop(dag->table[AFTER]);
    drop(dag->births), drop(dag->births_start), drop(dag->births_count);
    drop(dag);
}

static int has(const uint64_t *state, uint32_t v)
{
    return (int)(state[v / 64] >> (v % 64) & 1);
}

static void put_in(uint64_t *state, uint32_t v)
{
    state[v / 64] |= (uint64_t)1 << (v % 64);
}

static void tabulate(Dag *dag, int way)
{
    uint32_t n = dag->side->n, i, k, w, *order = make((size_t)n + 1, sizeof *order);
    Lists lists = way == BEFORE ? dag->before : dag->after;
    dag->words = n / 64 + 1;
    dag->table[way] = make((size_t)n * dag->words, sizeof(uint64_t));
    for (i = 0; i < n; i++)
        order[way == BEFORE ? dag->rank[i] : n - 1 - dag->rank[i]] = i;
    for (i = 0; i < n; i++) {
        uint64_t *row = dag->table[way] + (size_t)order[i] * dag->words;
        for (k = lists.start[order[i]]; k < lists.start[order[i] + 1]; k++) {
            const uint64_t *other = dag->table[way] + (size_t)lists.item[k] * dag->words;
            for (w = 0; w < dag->words; w++)
                row[w] |= other[w];
            put_in(row, lists.item[k]);
        }
    }
    drop(order);
}

/* The row of v in a table; NULL if none is kept. The DAG has a topological order: others are never searched. */
static const uint64_t *row_of(Dag *dag, int way, uint32_t v)
{
    if (dag->table[way] == NULL && dag->side->n <= TABULATED && ++dag->searches[way] > OFTEN)
        tabulate(dag, way);
    return dag->table[way] ? dag->table[way] + (size_t)v * dag->words : NULL;
}

/* Strict ancestors or descendants of v; returns how many, they stand in dag->stack and are stamped in dag->seen. */
static uint32_t search(Dag *dag, int way, uint32_t v)
{
    uint32_t count = 0, done = 0, k, u = v;
    Lists lists = way == BEFORE ? dag->before : dag->after;
    next_stamp(dag);
    for (;;) {
        for (k = lists.start[u]; k < lists.start[u + 1]; k++)
            if (dag->seen[lists.item[k]] != dag->stamp) {
                dag->seen[lists.item[k]] = dag->stamp;
                dag->stack[count++] = lists.item[k];
            }
        if (done == count)
            return count;
        u = dag->stack[done++];
    }
}

static int comes_before(Dag *dag, uint32_t u, uint32_t v)
{
    const uint64_t *row = row_of(dag, BEFORE, v);
    if (row)
        return has(row, u);
    search(dag, BEFORE, v);
    return dag->seen[u] == dag->stamp;
}

static const uint32_t *rank_for_sorting;

static int compare_ranks(const void *a, const void *b)
{
    uint32_t x = rank_for_sorting[*(const uint32_t *)a], y = rank_for_sorting[*(const uint32_t *)b];
    return x < y ? -1 : x > y;
}

/* Finds the births of a buffer that is not at entry: in topological order, each toucher that no search from an
 * earlier birth has met is one. The search goes forward, never past the last toucher, and ends when all are met. */
static void find_births(Dag *dag, uint32_t b)
{
    const Side *side = dag->side;
    uint32_t count = side->touchers.start[b + 1] - side->touchers.start[b], i, k, left = count, last, *touchers;
    if (dag->births_count[b] || count == 0 || side->entry[b])
        return;
    dag->births_start[b] = (uint32_t)dag->births_length;
    touchers = make(count, sizeof *touchers);
    memcpy(touchers, side->touchers.item + side->touchers.start[b], count * sizeof *touchers);
    rank_for_sorting = dag->rank;
    qsort(touchers, count, sizeof *touchers, compare_ranks);
    last = dag->rank[touchers[count - 1]];
    next_stamp(dag);
    for (i = 0; i < count; i++) {
        uint32_t ready = 0, done = 0, u = touchers[i];
        if (dag->seen[u] == dag->stamp)
            continue;
        dag->births = grown(dag->births, &dag->births_room, dag->births_length + 1, sizeof *dag->births);
        dag->births[dag->births_length++] = u;
        dag->births_count[b]++;
        left--;
        while (left) {
            for (k = dag->after.start[u]; k < dag->after.start[u + 1]; k++) {
                uint32_t w = dag->after.item[k];
                if (dag->rank[w] > last || dag->seen[w] == dag->stamp)
                    continue;
                dag->seen[w] = dag->stamp;
                dag->stack[ready++] = w;
                left -= (uint32_t)contains(side->touches, w, b);
            }
            if (done == ready)
                break;
            u = dag->stack[done++];
        }
        if (left == 0)
            break;
    }
    drop(touchers);
}

static int is_birth(const Dag *dag, uint32_t b, uint32_t v)
{
    uint32_t low = dag->births_start[b], high = low + dag->births_count[b], end = high;
    while (low < high) { /* births were found in topological order */
        uint32_t middle = low + (high - low) / 2;
        if (dag->rank[dag->births[middle]] < dag->rank[v])
            low = middle + 1;
        else
            high = middle;
    }
    return low < end && dag->births[low] == v;
}

static void require_births(const Json *json, Dag *dag, const Lists *writes)
{
    const Side *side = dag->side;
    uint32_t b, i;
    for (b = 0; b < side->m; b++) {
        if (!side->counted[b])
            continue;
        find_births(dag, b);
        for (i = 0; i < dag->births_count[b]; i++)
            if (!contains(*writes, dag->births[dag->births_start[b] + i], b))
                bad("%.300s: statement %lu reads buffer %lu before anything it depends on has written it", json->name,
                    (unsigned long)dag->births[dag->births_start[b] + i], (unsigned long)b);
    }
}

/* All births are known. A statement that touches a buffer is no birth of it exactly when a strict ancestor touches it. */
static void require_overlays(const Json *json, const Dag *dag, const Lists *writes, const uint32_t *output)
{
    const Side *side = dag->side;
    uint32_t v, k;
    for (v = 0; v < side->n; v++)
        for (k = side->inputs.start[v]; k < side->inputs.start[v + 1]; k++) {
            uint32_t a = side->inputs.item[k], o = output[v];
            if (dag->births_count[o] != 1 || !is_birth(dag, o, v))
                bad("%.300s: statements[%lu]: is not the only birth of its overlay's output", json->name, (unsigned long)v);
            if (a == o || side->pinned[a] || !contains(side->touches, v, a) || contains(*writes, v, a)
                || !(side->entry[a] || !is_birth(dag, a, v)))
                bad("%.300s: statements[%lu]: buffer %lu cannot be an input of its overlay", json->name, (unsigned long)v,
                    (unsigned long)a);
            side->saved[k] = side->bytes[a] < side->bytes[o] ? side->bytes[a] : side->bytes[o];
        }
}

static void require_sense(const Json *json, Side *side, const Lists *writes, const uint32_t *output)
{
    Graph own;
    Dag *dag;
    memset(&own, 0, sizeof own);
    own.side = side;
    dag = new_dag(&own);
    side->saved = make((size_t)side->inputs.start[side->n] + 1, sizeof *side->saved);
    require_births(json, dag, writes);
    require_overlays(json, dag, writes, output);
    drop_dag(dag);
}

/* The program run backwards: statement i is n - 1 - i, arcs turned round, entry and pinned exchanged. */
static Side *mirror_image(Side *side)
{
    Side *mirror = side->mirror;
    uint32_t n = side->n, i, k, at;
    Lists after;
    if (mirror)
        return mirror;
    side->mirror = mirror = make(1, sizeof *mirror);
    *mirror = *side;
    mirror->mirror = side;
    mirror->mirrored = !side->mirrored;
    mirror->entry = side->pinned;
    mirror->pinned = side->entry;
    mirror->workspace = make((size_t)n + 1, sizeof *mirror->workspace);
    mirror->ids = side->ids ? make((size_t)n + 1, sizeof *mirror->ids) : NULL;
    new_lists(&mirror->before, n, side->before.start[n]);
    new_lists(&mirror->touches, n, side->touches.start[n]);
    new_lists(&mirror->inputs, n, side->inputs.start[n]);
    mirror->saved = make((size_t)side->inputs.start[n] + 1, sizeof *mirror->saved);
    after = transposed(side->before, n, n);
    for (i = 0; i < n; i++) {
        uint32_t old = n - 1 - i;
        mirror->workspace[i] = side->workspace[old];
        if (side->ids)
            mirror->ids[i] = side->whole - 1 - side->ids[old];
        at = mirror->before.start[i];
        for (k = after.start[old + 1]; k-- > after.start[old];) /* from the last, so that they ascend */
            mirror->before.item[at++] = n - 1 - after.item[k];
        mirror->before.start[i + 1] = at;
        at = mirror->touches.start[i];
        for (k = side->touches.start[old]; k < side->touches.start[old + 1]; k++)
            mirror->touches.item[at++] = side->touches.item[k];
        mirror->touches.start[i + 1] = at;
        at = mirror->inputs.start[i];
        for (k = side->inputs.start[old]; k < side->inputs.start[old + 1]; k++) {
            mirror->saved[at] = side->saved[k];
            mirror->inputs.item[at++] = side->inputs.item[k];
        }
        mirror->inputs.start[i + 1] = at;
    }
    mirror->touchers = transposed(mirror->touches, n, side->m);
    drop(after.start);
    drop(after.item);
    return mirror;
}

/* The part of the statements in `set` alone, and of the buffers that they alone touch. No dependence may lead out of the set.
 * No overlay does: its buffers are shared with no other statement, as they are not both pinned and at entry. */
static Side *part_of(const Side *side, const uint64_t *set)
{
    Side *part = make(1, sizeof *part);
    uint32_t v, b, k, x, n = 0, m = 0, *number = make((size_t)side->n + 1, sizeof *number);
    uint32_t *buffer = make((size_t)side->m + 1, sizeof *buffer);
    uint32_t before = 0, touches = 0, inputs = 0;
    for (v = 0; v < side->n; v++)
        if (has(set, v)) {
            number[v] = n++;
            before += side->before.start[v + 1] - side->before.start[v];
            touches += side->touches.start[v + 1] - side->touches.start[v];
            inputs += side->inputs.start[v + 1] - side->inputs.start[v];
        }
    for (b = 0; b < side->m; b++) {
        int own = side->touchers.start[b] < side->touchers.start[b + 1];
        for (k = side->touchers.start[b]; own && k < side->touchers.start[b + 1]; k++)
            own = has(set, side->touchers.item[k]);
        buffer[b] = own ? m++ : UINT32_MAX;
    }
    part->n = n;
    part->m = m;
    part->whole = side->whole;
    part->mirrored = side->mirrored;
    part->bytes = make((size_t)m + 1, sizeof *part->bytes);
    part->counted = make((size_t)m + 1, 1);
    part->entry = make((size_t)m + 1, 1);
    part->pinned = make((size_t)m + 1, 1);
    part->buffer_ids = make((size_t)m + 1, sizeof *part->buffer_ids);
    for (b = 0; b < side->m; b++)
        if ((x = buffer[b]) != UINT32_MAX) {
            part->bytes[x] = side->bytes[b];
            part->counted[x] = 1; /* nothing touches a constant */
            part->entry[x] = side->entry[b];
            part->pinned[x] = side->pinned[b];
            part->buffer_ids[x] = side->buffer_ids ? side->buffer_ids[b] : b;
        }
    part->workspace = make((size_t)n + 1, sizeof *part->workspace);
    part->ids = make((size_t)n + 1, sizeof *part->ids);
    new_lists(&part->before, n, before);
    new_lists(&part->touches, n, touches);
    new_lists(&part->inputs, n, inputs);
    part->saved = make((size_t)inputs + 1, sizeof *part->saved);
    before = touches = inputs = 0;
    for (v = 0; v < side->n; v++) {
        if (!has(set, v))
            continue;
        x = number[v];
        part->workspace[x] = side->workspace[v];
        part->ids[x] = side->ids ? side->ids[v] : v;
        for (k = side->before.start[v]; k < side->before.start[v + 1]; k++)
            part->before.item[before++] = number[side->before.item[k]];
        part->before.start[x + 1] = before;
        for (k = side->touches.start[v]; k < side->touches.start[v + 1]; k++)
            if (buffer[side->touches.item[k]] != UINT32_MAX)
                part->touches.item[touches++] = buffer[side->touches.item[k]];
        part->touches.start[x + 1] = touches;
        for (k = side->inputs.start[v]; k < side->inputs.start[v + 1]; k++) {
            part->saved[inputs] = side->saved[k];
            part->inputs.item[inputs++] = buffer[side->inputs.item[k]];
        }
        part->inputs.start[x + 1] = inputs;
    }
    part->touchers = transposed(part->touches, n, m);
    drop(number);
    drop(buffer);
    return part;
}

/* The graph of a part: what was added to `from` between statements of the part. */
static Graph *graph_of_part(const Graph *from, Side *part, const uint64_t *set)
{
    Graph *graph = make(1, sizeof *graph);
    const Graph *g;
    uint32_t v, k, n = 0, *number = make((size_t)from->side->n + 1, sizeof *number);
    graph->side = part;
    for (v = 0; v < from->side->n; v++)
        if (has(set, v))
            number[v] = n++;
    for (g = from; g; g = g->base)
        for (k = 0; k < g->count; k++)
            graph->count += (uint32_t)has(set, g->arcs[2 * k]);
    graph->arcs = make((size_t)2 * graph->count + 1, sizeof *graph->arcs);
    for (g = from, graph->count = 0; g; g = g->base)
        for (k = 0; k < g->count; k++)
            if (has(set, g->arcs[2 * k])) {
                graph->arcs[2 * graph->count] = number[g->arcs[2 * k]];
                graph->arcs[2 * graph->count++ + 1] = number[g->arcs[2 * k + 1]];
            }
    graph->added = graph->count;
    drop(number);
    return graph;
}

static int compare_pairs(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Graphs of parts are the same exactly when their keys are (digests of side, part and the set of added arcs): two ways
 * to one part may have added the same. Of a whole program equal graphs are one `Graph`: only a branch leads to two graphs
 * from one state, and these two never become equal again; so numbers do. */
static void find_key(Graph *graph)
{
    Sha sha;
    const Graph *g;
    const Side *side = graph->side;
    unsigned char mirrored = (unsigned char)side->mirrored;
    uint64_t *pairs;
    size_t count = 0, i;
    uint32_t k;
    if (graph->number || *graph->key)
        return;
    pairs = make(graph->added + 1, sizeof *pairs);
    for (g = graph; g; g = g->base)
        for (k = 0; k < g->count; k++)
            pairs[count++] = (uint64_t)g->arcs[2 * k] << 32 | g->arcs[2 * k + 1];
    if (count > 1)
        qsort(pairs, count, sizeof *pairs, compare_pairs);
    sha_start(&sha);
    sha_add(&sha, &mirrored, 1);
    sha_add(&sha, &side->n, sizeof side->n);
    sha_add(&sha, side->ids, side->n * sizeof *side->ids);
    for (i = 0; i < count; i++)
        if (i == 0 || pairs[i - 1] != pairs[i])
            sha_add(&sha, pairs + i, sizeof *pairs);
    sha_end(&sha, graph->key);
    drop(pairs);
}

/* ---- flows -------------------------------------------------------------------------------------------------------
 * `region` says for each statement whether it is in L, undecided, or outside U, or in the part that a flow about the rest
 * leaves aside. As L is a down-set, a buffer has a birth in L exactly when it has a toucher in L, so births are needed only for
 * the arcs that a flow names.
 *
 * Amounts: every path from s to t, and every circle (the dependences have none), runs through an arc into some "b<i>" or
 * through "g"; the only arcs with a capacity are there, one for each. "g" has no more than the bytes of a buffer that v
 * touches, which has no node. So what passes a node, or an arc, sums to no more than all capacities, which is less than
 * 2^62, and a flow with more at any place breaks a capacity or is not conserved: it may be refused where it is met. */

enum { UNDECIDED, IN_LOW, OUT_HIGH, ASIDE };
enum { EARLY = 1, LATE = 2, GONE = 4 }; /* GONE: a constant, touched by v, held by the constant part, or of the part aside */
enum { AT_S, AT_T, AT_STATEMENT, AT_BUFFER, AT_JOIN, AT_OVERLAY };

typedef struct {
    int kind;
    uint32_t index;
} End;

typedef struct {
    const Json *json;
    Side *side;  /* the whole program */
    int version; /* of the certificate */
    Dag *dag;    /* of the context at hand, with its graph */
    Graph *graph;
    uint32_t graphs; /* made so far of the whole program */
    Wide bound;      /* L of the context at hand */
    unsigned char *region, *marks, *class; /* of statements, of statements, of buffers */
    uint64_t *in, *out;                    /* of network nodes */
    int has_g, g_late;                     /* whether the network has the node "g", and an arc from it to "t" */
    uint32_t g_input;                      /* the overlay's input of which it speaks */
    uint64_t g_bytes;
    const Graph *cut_from; /* the last part that a components node made: of which graph, by which node, and the outcome */
    uint32_t cut_node;
    Graph *cut;
} Proof;

/* The number in `side` of what the file calls `id`, `count` if it is not there: the place in `ids`, which ascend. */
static uint32_t number_of(const uint32_t *ids, uint32_t count, uint64_t id)
{
    uint32_t low = 0, high = count;
    if (ids == NULL)
        return id < count ? (uint32_t)id : count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ids[low] == id ? low : count;
}

/* What the file calls statement v, for messages. */
static unsigned long id_of(const Proof *proof, uint32_t v)
{
    const Side *side = proof->dag->side;
    return side->ids ? side->ids[v] : v;
}

static End end_of(const Proof *proof, uint32_t value, uint32_t arc)
{
    const Side *side = proof->dag->side;
    End end = {AT_S, 0};
    if (kind_of(proof->json, value) == TEXT) {
        Text text = text_of(proof->json, value);
        size_t i;
        uint64_t id = 0;
        if (is_text(text, "s"))
            return end;
        end.kind = AT_T;
        if (is_text(text, "t"))
            return end;
        end.kind = AT_OVERLAY;
        if (proof->has_g && is_text(text, "g"))
            return end;
        if (text.length >= 2 && text.length <= 11 && (text.bytes[0] == 'b' || text.bytes[0] == 'j')) {
            for (i = 1; i < text.length && text.bytes[i] >= '0' && text.bytes[i] <= '9'; i++)
                id = id * 10 + (uint64_t)(text.bytes[i] - '0');
            end.kind = text.bytes[0] == 'b' ? AT_BUFFER : AT_JOIN;
            end.index = number_of(side->buffer_ids, side->m, id);
            if (i == text.length && (text.bytes[1] != '0' || i == 2) && end.index < side->m) {
                if (proof->class[end.index] & GONE)
                    refuse("flow[%lu]: buffer %lu is no node of the network", (unsigned long)arc, (unsigned long)id);
                return end;
            }
        }
        refuse("flow[%lu]: names no node of the network", (unsigned long)arc);
    }
    end.kind = AT_STATEMENT;
    end.index = number_of(side->ids, side->n, below(proof->json, value, side->whole));
    if (end.index == side->n || proof->region[end.index] != UNDECIDED)
        refuse("flow[%lu]: must lead between nodes; a statement must be undecided", (unsigned long)arc);
    return end;
}

static size_t place_of(const Side *side, End end)
{
    switch (end.kind) {
    case AT_S: return 0;
    case AT_T: return 1;
    case AT_STATEMENT: return (size_t)2 + end.index;
    case AT_BUFFER: return (size_t)2 + side->n + end.index;
    case AT_JOIN: return (size_t)2 + side->n + side->m + end.index;
    default: return (size_t)2 + side->n + 2 * (size_t)side->m;
    }
}

/* Capacity of an arc; 0 if the network has no such arc (an arc of no capacity carries nothing either). */
static uint64_t capacity(const Proof *proof, End from, End to)
{
    Dag *dag = proof->dag;
    const Side *side = dag->side;
    uint32_t b = to.index;
    if (from.kind == AT_OVERLAY || to.kind == AT_OVERLAY) {
        End other = from.kind == AT_OVERLAY ? to : from;
        if ((from.kind == AT_OVERLAY) == side->mirrored) /* the end of "g" that has the capacity */
            return other.kind == (side->mirrored ? AT_T : AT_S) ? proof->g_bytes : 0;
        if (other.kind == AT_STATEMENT)
            return contains(side->touches, other.index, proof->g_input) ? LIMIT : 0;
        return other.kind == AT_T && proof->g_late ? LIMIT : 0;
    }
    if (from.kind == AT_STATEMENT && to.kind == AT_STATEMENT)
        return contains(dag->before, from.index, to.index) ? LIMIT : 0;
    if (from.kind == AT_BUFFER) {
        if (to.kind == AT_STATEMENT)
            return contains(side->touches, to.index, from.index) ? LIMIT : 0;
        return to.kind == AT_T && proof->class[from.index] & LATE ? LIMIT : 0;
    }
    if (to.kind != AT_BUFFER && to.kind != AT_JOIN)
        return 0;
    if (proof->class[b] & EARLY)
        return from.kind == AT_S && to.kind == AT_BUFFER ? side->bytes[b] : 0;
    find_births(dag, b);
    if (from.kind == AT_STATEMENT && !is_birth(dag, b, from.index))
        return 0;
    if (to.kind == AT_JOIN)
        return from.kind == AT_STATEMENT && dag->births_count[b] > 1 ? LIMIT : 0;
    if (from.kind == AT_STATEMENT)
        return dag->births_count[b] == 1 ? side->bytes[b] : 0;
    return from.kind == AT_JOIN && from.index == b && dag->births_count[b] > 1 ? side->bytes[b] : 0;
}

typedef struct {
    size_t from, to;
} Arc;

static int compare_arcs(const void *a, const void *b)
{
    const Arc *x = a, *y = b;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

#define NO_STATEMENT UINT32_MAX

/* Sets the node "g" up for input number k of all overlays, one of statement v's. Returns by how much the constant is less. */
static uint64_t set_overlay(Proof *proof, uint32_t v, uint32_t k)
{
    const Side *side = proof->dag->side;
    uint32_t a = side->inputs.item[k], i;
    int early = 0, late = 0;
    for (i = side->touchers.start[a]; i < side->touchers.start[a + 1]; i++)
        if (side->touchers.item[i] != v) {
            early |= proof->region[side->touchers.item[i]] == IN_LOW;
            late |= proof->region[side->touchers.item[i]] == OUT_HIGH;
        }
    if (side->mirrored && early)
        return 0;
    proof->has_g = 1;
    proof->g_late = late && !side->mirrored;
    proof->g_input = a;
    proof->g_bytes = side->saved[k];
    return side->saved[k];
}

#define NO_INPUT UINT32_MAX

/* The value that a flow shows for cut(v | L, U), or for the least rest; L and U are in proof->region. Where v has an overlay, for
 * its input number `input`. */
static Wide flow_value(Proof *proof, uint32_t v, uint32_t input, uint32_t flow)
{
    const Json *json = proof->json;
    const Side *side = proof->dag->side;
    uint64_t held = 0; /* below 2^62: a sum of buffers */
    uint32_t b, k, i, count, at;
    Wide value = wide(0);
    Arc *arcs;
    if (kind_of(json, flow) != LIST)
        refuse("'flow' must be a list");
    memset(proof->class, 0, side->m);
    if (v != NO_STATEMENT) {
        for (k = side->touches.start[v]; k < side->touches.start[v + 1]; k++) {
            proof->class[side->touches.item[k]] = GONE;
            held += side->bytes[side->touches.item[k]];
        }
        value = side->workspace[v];
    }
    proof->has_g = 0;
    if (input != NO_INPUT)
        held -= set_overlay(proof, v, input); /* no more than the input, which v touches */
    for (b = 0; b < side->m; b++) {
        int class = (side->entry[b] ? EARLY : 0) | (side->pinned[b] ? LATE : 0);
        int aside = side->touchers.start[b] < side->touchers.start[b + 1];
        if (proof->class[b] == GONE)
            continue;
        for (k = side->touchers.start[b]; k < side->touchers.start[b + 1] && (aside || class != (EARLY | LATE)); k++) {
            int where = proof->region[side->touchers.item[k]];
            class |= where == IN_LOW ? EARLY : where == OUT_HIGH ? LATE : 0;
            aside &= where == ASIDE;
        }
        if (!side->counted[b] || aside)
            class = GONE;
        else if (class == (EARLY | LATE)) {
            held += side->bytes[b];
            class = GONE;
        }
        proof->class[b] = (unsigned char)class;
    }
    count = json->values[flow].length;
    arcs = make((size_t)count + 1, sizeof *arcs);
    for (i = 0, at = flow + 1; i < count; i++, at = json->values[at].end) {
        uint32_t first = at + 1, second, third;
        uint64_t amount;
        End from, to;
        if (kind_of(json, at) != LIST || json->values[at].length != 3)
            refuse("flow[%lu] must be [from, to, amount]", (unsigned long)i);
        second = json->values[first].end;
        third = json->values[second].end;
        from = end_of(proof, first, i);
        to = end_of(proof, second, i);
        amount = below(json, third, LIMIT);
        if (amount == 0)
            refuse("flow[%lu] must carry a positive whole number of bytes", (unsigned long)i);
        if (amount > capacity(proof, from, to) || amount == LIMIT)
            refuse("flow[%lu] carries more than the capacity of its arc, or the network has no such arc", (unsigned long)i);
        arcs[i].from = place_of(side, from);
        arcs[i].to = place_of(side, to);
        if (i == 0)
            proof->out[0] = 0;
        proof->in[arcs[i].from] = proof->out[arcs[i].to] = 0;
        proof->in[arcs[i].to] = proof->out[arcs[i].from] = 0;
    }
    for (i = 0, at = flow + 1; i < count; i++, at = json->values[at].end) {
        uint64_t amount = below(json, json->values[json->values[at + 1].end].end, LIMIT);
        proof->out[arcs[i].from] += amount;
        proof->in[arcs[i].to] += amount;
        if (proof->out[arcs[i].from] >= LIMIT || proof->in[arcs[i].to] >= LIMIT)
            refuse("flow[%lu]: more passes a node than all buffers together hold", (unsigned long)i);
    }
    for (i = 0; i < count; i++)
        if ((arcs[i].from > 1 && proof->in[arcs[i].from] != proof->out[arcs[i].from])
            || (arcs[i].to > 1 && proof->in[arcs[i].to] != proof->out[arcs[i].to]))
            refuse("the flow is not conserved at an end of flow[%lu]", (unsigned long)i);
    value = add(add(value, wide(held)), wide(count ? proof->out[0] : 0));
    if (count > 1)
        qsort(arcs, count, sizeof *arcs, compare_arcs);
    for (i = 1; i < count; i++)
        if (compare_arcs(arcs + i - 1, arcs + i) == 0)
            refuse("the flow uses an arc twice");
    drop(arcs);
    return value;
}

static void require_value(Wide value, Wide wanted)
{
    char shown[44];
    if (compare(value, wanted) < 0)
        refuse("a flow shows %s bytes only", decimal(value, shown));
}

/* The object's flow for cut(v | L, U), or its flows if v has an overlay, must show the bound. */
static void require_flow(Proof *proof, uint32_t v, uint32_t object)
{
    const Json *json = proof->json;
    Lists inputs = proof->dag->side->inputs;
    uint32_t flow = member(json, object, "flow"), flows = member(json, object, "flows"), k = inputs.start[v], end = inputs.start[v + 1];
    if (k == end) {
        if (flows)
            refuse("statement %lu has no overlay: it needs 'flow' and no 'flows'", id_of(proof, v));
        require_value(flow_value(proof, v, NO_INPUT, flow), proof->bound);
        return;
    }
    if (flow || kind_of(json, flows) != LIST || json->values[flows].length != end - k)
        refuse("statement %lu has an overlay: it needs 'flows', one for each input, and no 'flow'", id_of(proof, v));
    for (flow = flows + 1; k < end; k++, flow = json->values[flow].end)
        require_value(flow_value(proof, v, k, flow), proof->bound);
}

/* ---- proof nodes ------------------------------------------------------------------------------------------------- */

/* A state is a bit set over the statements; `rest` is what it holds, which no precedence changes. */
typedef struct Context {
    struct Context *next;
    Graph *graph;
    Wide bound; /* L: less than the proof's for a part */
    uint64_t rest;
    uint64_t state[1];
} Context;

typedef struct {
    Context **of; /* of each node: those still to be proved */
    uint64_t limit, proved, pending;
    uint32_t nodes;
} Contexts;

static size_t words_of(const Side *side)
{
    return (size_t)side->n / 64 + 1;
}

/* Keys must have been found. Where keys and numbers are the same, the sides are. */
static int compare_contexts(const void *a, const void *b)
{
    const Context *x = *(Context *const *)a, *y = *(Context *const *)b;
    size_t i;
    int order = strcmp(x->graph->key, y->graph->key);
    if (x->graph->number != y->graph->number)
        return x->graph->number < y->graph->number ? -1 : 1;
    if (order == 0)
        order = compare(x->bound, y->bound);
    for (i = 0; order == 0 && i < words_of(x->graph->side); i++)
        order = x->state[i] < y->state[i] ? -1 : x->state[i] > y->state[i];
    return order;
}

/* Keeps each context of a node once. Returns how many were dropped. */
static uint64_t once(Contexts *contexts, uint32_t node)
{
    Context *c, **all;
    size_t count = 0, i;
    uint64_t dropped = 0;
    for (c = contexts->of[node]; c; c = c->next)
        count++;
    if (count < 2)
        return 0;
    all = make(count, sizeof *all);
    for (count = 0, c = contexts->of[node]; c; c = c->next) {
        find_key(c->graph);
        all[count++] = c;
    }
    qsort(all, count, sizeof *all, compare_contexts);
    contexts->of[node] = NULL;
    for (i = 0; i < count; i++)
        if (i + 1 < count && compare_contexts(all + i, all + i + 1) == 0) {
            drop(all[i]);
            dropped++;
        } else {
            all[i]->next = contexts->of[node];
            contexts->of[node] = all[i];
        }
    drop(all);
    return dropped;
}

static void too_many(const Contexts *contexts)
{
    refuse("the nodes are used in more than %lu contexts", (unsigned long)contexts->limit);
}

/* Node `node` has to be proved at the state, with statement `v` added if there is one. Contexts are counted exactly when a
 * node's turn comes; here only when there are twice too many. */
static void demand(Contexts *contexts, uint32_t node, Graph *graph, Wide bound, const uint64_t *state, uint32_t v, uint64_t rest)
{
    size_t words = words_of(graph->side);
    Context *c = make(1, sizeof *c + words * sizeof(uint64_t));
    uint32_t k;
    c->graph = graph;
    c->bound = bound;
    c->rest = rest;
    memcpy(c->state, state, words * sizeof(uint64_t));
    if (v != NO_STATEMENT)
        put_in(c->state, v);
    c->next = contexts->of[node];
    contexts->of[node] = c;
    if (++contexts->pending > 2 * contexts->limit) {
        for (k = 0; k < contexts->nodes; k++)
            contexts->pending -= once(contexts, k);
        if (contexts->proved + contexts->pending > contexts->limit)
            too_many(contexts);
    }
}

static uint64_t rest_of(const Side *side, const uint64_t *state)
{
    uint64_t rest = 0;
    uint32_t b, k;
    for (b = 0; b < side->m; b++) {
        int born = side->entry[b], kept = side->pinned[b];
        for (k = side->touchers.start[b]; k < side->touchers.start[b + 1] && !(born && kept); k++)
            if (has(state, side->touchers.item[k]))
                born = 1;
            else
                kept = 1;
        if (side->counted[b] && born && kept)
            rest += side->bytes[b];
    }
    return rest;
}

/* By how much an overlay lowers mem(S, v): by the largest of what its inputs save that die at v, or in a mirror image are
 * born there. */
static uint64_t saved_at(const Side *side, const uint64_t *state, uint32_t v)
{
    uint64_t most = 0;
    uint32_t i, k;
    for (i = side->inputs.start[v]; i < side->inputs.start[v + 1]; i++) {
        uint32_t a = side->inputs.item[i];
        int free = side->saved[i] > most;
        for (k = side->touchers.start[a]; free && k < side->touchers.start[a + 1]; k++)
            free = side->touchers.item[k] == v || has(state, side->touchers.item[k]) == !side->mirrored;
        if (free)
            most = side->saved[i];
    }
    return most;
}

/* mem(S, v); `*rest` becomes rest(S + v). Only what v touches changes. */
static Wide step(const Side *side, const uint64_t *state, uint32_t v, uint64_t *rest)
{
    uint64_t touched = 0, gained = 0, lost = 0;
    uint32_t i, k;
    for (i = side->touches.start[v]; i < side->touches.start[v + 1]; i++) {
        uint32_t b = side->touches.item[i];
        int born = side->entry[b], kept = side->pinned[b];
        for (k = side->touchers.start[b]; k < side->touchers.start[b + 1] && !(born && kept); k++)
            if (has(state, side->touchers.item[k]))
                born = 1;
            else if (side->touchers.item[k] != v)
                kept = 1;
        touched += side->bytes[b];
        lost += born ? side->bytes[b] : 0; /* it was resident: v, outside S, touches it */
        gained += kept ? side->bytes[b] : 0;
    }
    touched += *rest - lost;
    touched -= saved_at(side, state, v); /* v touches all inputs */
    *rest = *rest - lost + gained;
    return add(side->workspace[v], wide(touched));
}

static int is_ready(const Dag *dag, const uint64_t *state, uint32_t v)
{
    uint32_t k;
    for (k = dag->before.start[v]; k < dag->before.start[v + 1]; k++)
        if (!has(state, dag->before.item[k]))
            return 0;
    return !has(state, v);
}

/* The statement that a member of a node names. */
static uint32_t statement(const Proof *proof, uint32_t value, const char *what)
{
    const Side *side = proof->dag->side;
    uint32_t v = number_of(side->ids, side->n, below(proof->json, value, side->whole));
    if (v == side->n)
        refuse("%s must be a statement of the program, or of its part at hand", what);
    return v;
}

static uint32_t statement_at(const Proof *proof, uint32_t object, const char *name)
{
    return statement(proof, member(proof->json, object, name), name);
}

static uint32_t list_at(const Proof *proof, uint32_t object, const char *name)
{
    uint32_t list = member(proof->json, object, name);
    if (kind_of(proof->json, list) != LIST)
        refuse("'%s' must be a list", name);
    return list;
}

static uint32_t reference(const Proof *proof, uint32_t value, uint32_t node)
{
    uint32_t k = (uint32_t)below(proof->json, value, node);
    if (k == node)
        refuse("must refer to an earlier node");
    return k;
}

/* A list of distinct statements as a new set. */
static uint64_t *set_at(const Proof *proof, uint32_t object, const char *name)
{
    const Json *json = proof->json;
    uint32_t list = list_at(proof, object, name), at = list + 1, i;
    uint64_t *set = make((size_t)proof->dag->side->n / 64 + 1, sizeof *set);
    for (i = 0; i < json->values[list].length; i++, at = json->values[at].end) {
        uint32_t v = statement(proof, at, name);
        if (has(set, v))
            refuse("'%s' lists statement %lu twice", name, id_of(proof, v));
        put_in(set, v);
    }
    return set;
}

static void require_down_set(const Proof *proof, const uint64_t *set, const char *what)
{
    const Dag *dag = proof->dag;
    uint32_t v, k;
    for (v = 0; v < dag->side->n; v++)
        for (k = dag->before.start[v]; has(set, v) && k < dag->before.start[v + 1]; k++)
            if (!has(set, dag->before.item[k]))
                refuse("%s holds statement %lu without statement %lu", what, id_of(proof, v), id_of(proof, dag->before.item[k]));
}

static void require_holds(const Proof *proof, const uint64_t *set, const uint64_t *state)
{
    uint32_t v;
    for (v = 0; v < proof->dag->side->n; v++)
        if (has(state, v) && !has(set, v))
            refuse("misses statement %lu, which has run", id_of(proof, v));
}

/* Puts the strict ancestors or descendants of v into a region. */
static void mark_search(Proof *proof, int way, uint32_t v, unsigned char mark)
{
    Dag *dag = proof->dag;
    const uint64_t *row = row_of(dag, way, v);
    uint32_t k, i, count = row ? 0 : search(dag, way, v);
    for (k = 0; k < count; k++)
        proof->region[dag->stack[k]] = mark;
    for (i = 0; row && i < dag->words; i++) {
        uint64_t word = row[i];
        for (k = 64 * i; word; word >>= 1, k++)
            if (word & 1)
                proof->region[k] = mark;
    }
}

/* A trap. Forward: T a down-set with S in it; the exits are what can run next. Backward: R an up-set without S; the
 * entries are what can run last before it. Each must be listed once, with its flow. */
static void check_trap(Proof *proof, uint32_t node, const Context *c, int forward)
{
    const Json *json = proof->json;
    Dag *dag = proof->dag;
    uint32_t n = dag->side->n, v, w, k, i, at, list, wanted = 0;
    uint64_t *set = set_at(proof, node, "trap"); /* T, or V - R: both are down-sets that hold S */
    if (!forward)
        for (v = 0; v < n; v++)
            set[v / 64] ^= (uint64_t)1 << (v % 64);
    require_down_set(proof, set, forward ? "the trap" : "what the trap leaves");
    require_holds(proof, set, c->state);
    for (v = 0; v < n; v++) { /* marks: the exits or entries that have to be listed */
        int edge = forward ? is_ready(dag, set, v) : has(set, v) && !has(c->state, v);
        for (k = dag->after.start[v]; edge && !forward && k < dag->after.start[v + 1]; k++)
            edge = !has(set, dag->after.item[k]);
        proof->marks[v] = (unsigned char)edge;
        wanted += (uint32_t)edge;
    }
    if (wanted == 0) /* a DAG has a first statement outside T, a last one in V - R - S */
        refuse("the trap leaves nothing to run");
    list = list_at(proof, node, forward ? "exits" : "entries");
    for (i = 0, at = list + 1; i < json->values[list].length; i++, at = json->values[at].end) {
        if (kind_of(json, at) != OBJECT)
            refuse("exits and entries must be objects");
        v = statement_at(proof, at, "statement");
        if (!proof->marks[v])
            refuse("statement %lu is no exit or entry of the trap, or listed twice", id_of(proof, v));
        proof->marks[v] = 0;
        wanted--;
        if (forward) {
            for (w = 0; w < n; w++)
                proof->region[w] = (unsigned char)(has(c->state, w) ? IN_LOW : has(set, w) ? UNDECIDED : OUT_HIGH);
            mark_search(proof, BEFORE, v, IN_LOW);
        } else {
            for (w = 0; w < n; w++)
                proof->region[w] = (unsigned char)(has(set, w) ? IN_LOW : UNDECIDED);
            mark_search(proof, AFTER, v, OUT_HIGH);
            proof->region[v] = OUT_HIGH;
        }
        require_flow(proof, v, at);
    }
    if (wanted)
        refuse("%lu exits or entries of the trap are not listed", (unsigned long)wanted);
    drop(set);
}

static void require_incomparable(const Proof *proof, uint32_t u, uint32_t v)
{
    if (u == v || comes_before(proof->dag, u, v) || comes_before(proof->dag, v, u))
        refuse("statements %lu and %lu are ordered already", id_of(proof, u), id_of(proof, v));
}

static void require_empty(const Context *c)
{
    size_t i;
    for (i = 0; i < words_of(c->graph->side); i++)
        if (c->state[i])
            refuse("stands at a state that is not the empty one");
}

static Graph *stronger(Proof *proof, Graph *base, uint32_t count)
{
    Graph *graph = make(1, sizeof *graph);
    graph->side = base->side;
    graph->base = base;
    graph->arcs = make((size_t)2 * count, sizeof *graph->arcs);
    graph->count = count;
    graph->added = base->added + count;
    if (base->number)
        graph->number = ++proof->graphs;
    return graph;
}

static Graph *check_precedence(Proof *proof, uint32_t node, const Context *c)
{
    const Json *json = proof->json;
    Dag *dag = proof->dag;
    uint32_t list = list_at(proof, node, "arcs"), count = json->values[list].length, i, at;
    Graph *graph = count ? stronger(proof, c->graph, count) : c->graph;
    for (i = 0, at = list + 1; i < count; i++, at = json->values[at].end) {
        uint32_t u, v, x;
        if (kind_of(json, at) != OBJECT)
            refuse("arcs must be objects");
        u = statement_at(proof, at, "before");
        v = statement_at(proof, at, "after");
        x = statement_at(proof, at, "at");
        if (x != u && x != v)
            refuse("'at' must be one of the pair");
        require_incomparable(proof, u, v);
        memset(proof->region, UNDECIDED, dag->side->n);
        mark_search(proof, BEFORE, x, IN_LOW);
        if (x == u) { /* forcing v, and so its ancestors */
            mark_search(proof, BEFORE, v, IN_LOW);
            proof->region[v] = IN_LOW;
        } else { /* forbidding u, and so its descendants */
            mark_search(proof, AFTER, u, OUT_HIGH);
            proof->region[u] = OUT_HIGH;
        }
        mark_search(proof, AFTER, x, OUT_HIGH);
        proof->region[x] = OUT_HIGH;
        require_flow(proof, x, at);
        graph->arcs[2 * i] = u;
        graph->arcs[2 * i + 1] = v;
    }
    if (count) {
        Dag *then = new_dag(graph);
        graph->cyclic = then->cyclic;
        drop_dag(then);
    }
    return graph;
}

static void check_cycle(const Proof *proof, uint32_t node)
{
    const Json *json = proof->json;
    uint32_t list = list_at(proof, node, "statements"), count = json->values[list].length, i, at = list + 1, first, last;
    if (count == 0)
        refuse("the cycle is empty");
    first = last = statement(proof, at, "statements");
    for (i = 1; i <= count; i++) {
        uint32_t v = first;
        at = json->values[at].end;
        if (i < count)
            v = statement(proof, at, "statements");
        if (!contains(proof->dag->before, v, last))
            refuse("statement %lu does not directly precede statement %lu", id_of(proof, last), id_of(proof, v));
        last = v;
    }
}

/* W must be a down-set that holds S, each member before each non-member. It suffices that each member without a successor
 * in W directly precedes each non-member whose predecessors are all in W: nothing can stand between two such. */
static uint64_t *check_waypoint(const Proof *proof, uint32_t node, const Context *c)
{
    const Dag *dag = proof->dag;
    uint32_t n = dag->side->n, v, k, i, count = 0, *tops = make((size_t)n + 1, sizeof *tops);
    uint64_t *set = set_at(proof, node, "state");
    require_down_set(proof, set, "the state");
    require_holds(proof, set, c->state);
    for (v = 0; v < n; v++) {
        int top = has(set, v);
        for (k = dag->after.start[v]; top && k < dag->after.start[v + 1]; k++)
            top = !has(set, dag->after.item[k]);
        if (top)
            tops[count++] = v;
    }
    for (v = 0; v < n; v++)
        if (is_ready(dag, set, v))
            for (i = 0; i < count; i++)
                if (!contains(dag->before, v, tops[i]))
                    refuse("statement %lu does not precede statement %lu", id_of(proof, tops[i]), id_of(proof, v));
    drop(tops);
    return set;
}

static void check_expand(Proof *proof, Contexts *contexts, uint32_t node, uint32_t index, const Context *c)
{
    const Json *json = proof->json;
    const Dag *dag = proof->dag;
    uint32_t n = dag->side->n, children = member(json, node, "children"), v, i, at, ready = 0;
    if (kind_of(json, children) != OBJECT)
        refuse("'children' must be an object");
    for (v = 0; v < n; v++) {
        proof->marks[v] = (unsigned char)is_ready(dag, c->state, v);
        ready += proof->marks[v];
    }
    if (ready == 0)
        refuse("nothing is left to run");
    if (json->values[children].length != ready)
        refuse("%lu statements are ready, not as many as 'children' has entries", (unsigned long)ready);
    for (i = 0, at = children + 1; i < ready; i++, at = json->values[at + 1].end) {
        Text text = text_of(json, at);
        uint64_t rest = c->rest, number = 0;
        size_t k;
        Wide mem;
        for (k = 0; k < text.length && k < 10 && text.bytes[k] >= '0' && text.bytes[k] <= '9'; k++)
            number = number * 10 + (uint64_t)(text.bytes[k] - '0');
        v = number_of(dag->side->ids, n, number);
        if (k == 0 || k != text.length || (text.bytes[0] == '0' && k > 1) || v == n || !proof->marks[v])
            refuse("'children' names what is not a ready statement"); /* names are distinct, so is what they name */
        mem = step(dag->side, c->state, v, &rest);
        if (kind_of(json, at + 1) == NIL) {
            if (compare(mem, proof->bound) < 0)
                refuse("statement %lu runs within the budget and needs a child", id_of(proof, v));
        } else
            demand(contexts, reference(proof, at + 1, index), c->graph, c->bound, c->state, v, rest);
    }
}

/* Runs a statement within the budget: S becomes S + v. */
static void run_within(const Proof *proof, uint64_t *state, uint32_t v, uint64_t *rest)
{
    if (!is_ready(proof->dag, state, v))
        refuse("statement %lu is not ready", id_of(proof, v));
    if (compare(step(proof->dag->side, state, v, rest), proof->bound) >= 0)
        refuse("statement %lu does not run within the budget", id_of(proof, v));
    put_in(state, v);
}

/* One move, or the path of a jump and the flow that shows that its end is the least rest on the way. */
static void check_moves(Proof *proof, Contexts *contexts, uint32_t node, uint32_t index, const Context *c, int jump)
{
    const Json *json = proof->json;
    uint32_t n = proof->dag->side->n, v, i;
    uint64_t rest = c->rest;
    uint64_t *state = make(words_of(c->graph->side), sizeof *state);
    memcpy(state, c->state, words_of(c->graph->side) * sizeof *state);
    if (jump) {
        uint32_t list = list_at(proof, node, "path"), at = list + 1;
        for (i = 0; i < json->values[list].length; i++, at = json->values[at].end)
            run_within(proof, state, statement(proof, at, "path"), &rest);
        for (v = 0; v < n; v++)
            proof->region[v] = (unsigned char)(has(c->state, v) ? IN_LOW : has(state, v) ? UNDECIDED : OUT_HIGH);
        require_value(flow_value(proof, NO_STATEMENT, NO_INPUT, member(json, node, "flow")), wide(rest));
    } else {
        run_within(proof, state, statement_at(proof, node, "statement"), &rest);
        if (rest > c->rest)
            refuse("the move leaves more than before");
    }
    demand(contexts, reference(proof, member(json, node, "then"), index), c->graph, c->bound, state, NO_STATEMENT, rest);
    drop(state);
}

/* Nothing may join the statements of the set to the others: no precedence, and no buffer but one that is held throughout. */
static void require_apart(const Proof *proof, const uint64_t *set)
{
    const Dag *dag = proof->dag;
    const Side *side = dag->side;
    uint32_t v, b, k;
    for (v = 0; v < side->n; v++)
        for (k = dag->before.start[v]; k < dag->before.start[v + 1]; k++)
            if (has(set, v) != has(set, dag->before.item[k]))
                refuse("statements %lu and %lu are joined by a precedence", id_of(proof, dag->before.item[k]), id_of(proof, v));
    for (b = 0; b < side->m; b++)
        for (k = side->touchers.start[b] + 1; k < side->touchers.start[b + 1] && !(side->entry[b] && side->pinned[b]); k++)
            if (has(set, side->touchers.item[k - 1]) != has(set, side->touchers.item[k]))
                refuse("statements %lu and %lu are joined by a buffer", id_of(proof, side->touchers.item[k - 1]),
                    id_of(proof, side->touchers.item[k]));
}

/* A part whose proof is enough, beside what the rest holds at least. */
static void check_components(Proof *proof, Contexts *contexts, uint32_t node, uint32_t index, const Context *c)
{
    const Json *json = proof->json;
    const Side *side = proof->dag->side;
    uint32_t v, x = 0;
    uint64_t *set = set_at(proof, node, "statements"), *state;
    Wide least;
    Side *part;
    for (v = 0; v < side->n; v++) {
        proof->region[v] = (unsigned char)(has(set, v) ? ASIDE : has(c->state, v) ? IN_LOW : UNDECIDED);
        x += (uint32_t)has(set, v);
    }
    if (x == 0 || x == side->n)
        refuse("'statements' must be some, not all");
    require_apart(proof, set);
    least = flow_value(proof, NO_STATEMENT, NO_INPUT, member(json, node, "flow"));
    if (compare(least, c->bound) >= 0)
        refuse("the others hold the bound alone; nothing is left to prove for the part");
    if (proof->cut_node != index || proof->cut_from != c->graph) {
        int again = proof->cut && proof->cut_node == index && proof->cut_from->side == side;
        part = again ? proof->cut->side : part_of(side, set);
        proof->cut = graph_of_part(c->graph, part, set);
        proof->cut_node = index;
        proof->cut_from = c->graph;
    }
    part = proof->cut->side;
    state = make(words_of(part), sizeof *state);
    for (v = x = 0; v < side->n; v++)
        if (has(set, v)) {
            if (has(c->state, v))
                put_in(state, x);
            x++;
        }
    demand(contexts, reference(proof, member(json, node, "then"), index), proof->cut, subtract(c->bound, least), state, NO_STATEMENT,
        rest_of(part, state));
    drop(state);
    drop(set);
}

static const char *const KINDS[] = {"entry", "forward", "backward", "precedence", "cycle", "branch", "reverse", "waypoint",
    "expand", "move", "jump", "components"};
enum { ENTRY, FORWARD, BACKWARD, PRECEDENCE, CYCLE, BRANCH, REVERSE, WAYPOINT, EXPAND, MOVE, JUMP, COMPONENTS, KINDS_COUNT };

/* Proves one node in one context: checks what it claims and demands what it refers to. */
static void check_node(Proof *proof, Contexts *contexts, uint32_t node, uint32_t index, int kind, const Context *c)
{
    const Json *json = proof->json;
    char shown[44];
    if (c->graph->cyclic && kind != CYCLE)
        refuse("stands where the precedences are cyclic; only a cycle may");
    switch (kind) {
    case ENTRY:
        if (compare(wide(c->rest), proof->bound) < 0)
            refuse("only %s bytes are resident at the state", decimal(wide(c->rest), shown));
        break;
    case FORWARD:
    case BACKWARD:
        check_trap(proof, node, c, kind == FORWARD);
        break;
    case PRECEDENCE: {
        Graph *graph;
        require_empty(c);
        graph = check_precedence(proof, node, c);
        demand(contexts, reference(proof, member(json, node, "then"), index), graph, c->bound, c->state, NO_STATEMENT, c->rest);
        break;
    }
    case CYCLE:
        check_cycle(proof, node);
        break;
    case BRANCH: {
        uint32_t pair = list_at(proof, node, "pair"), u, v;
        Graph *graph;
        require_empty(c);
        if (json->values[pair].length != 2)
            refuse("'pair' must name two statements");
        u = statement(proof, pair + 1, "pair");
        v = statement(proof, json->values[pair + 1].end, "pair");
        require_incomparable(proof, u, v);
        graph = stronger(proof, c->graph, 1);
        graph->arcs[0] = u, graph->arcs[1] = v;
        demand(contexts, reference(proof, member(json, node, "first"), index), graph, c->bound, c->state, NO_STATEMENT, c->rest);
        graph = stronger(proof, c->graph, 1);
        graph->arcs[0] = v, graph->arcs[1] = u;
        demand(contexts, reference(proof, member(json, node, "second"), index), graph, c->bound, c->state, NO_STATEMENT, c->rest);
        break;
    }
    case REVERSE: {
        Graph *graph;
        require_empty(c);
        if (c->graph->added)
            refuse("stands below an added precedence");
        graph = make(1, sizeof *graph);
        graph->side = mirror_image(c->graph->side);
        if (c->graph->number)
            graph->number = ++proof->graphs;
        demand(contexts, reference(proof, member(json, node, "then"), index), graph, c->bound, c->state, NO_STATEMENT,
            rest_of(graph->side, c->state));
        break;
    }
    case WAYPOINT: {
        uint64_t *state = check_waypoint(proof, node, c);
        demand(contexts, reference(proof, member(json, node, "then"), index), c->graph, c->bound, state, NO_STATEMENT,
            rest_of(proof->dag->side, state));
        drop(state);
        break;
    }
    case EXPAND:
        check_expand(proof, contexts, node, index, c);
        break;
    case COMPONENTS:
        if (proof->version < 2)
            refuse("stands in a certificate of version 1");
        check_components(proof, contexts, node, index, c);
        break;
    default:
        check_moves(proof, contexts, node, index, c, kind == JUMP);
    }
}

static uint32_t population(const uint64_t *state, uint32_t n)
{
    uint32_t v, count = 0;
    for (v = 0; v < n; v++)
        count += (uint32_t)has(state, v);
    return count;
}

static void trace_node(const Proof *proof, const Context *c)
{
    const Side *side = proof->dag->side;
    char shown[44];
    printf("%s%lu statements run, %lu precedences added%s", place, (unsigned long)population(c->state, side->n),
        (unsigned long)c->graph->added, side->mirrored ? ", mirror image" : "");
    if (side->ids)
        printf(", part of %lu statements from %s B on", (unsigned long)side->n, decimal(c->bound, shown));
    printf("\n");
}

/* The proof of one part: nodes from the root down, each in every context in which it is used. References lead to smaller
 * indices, so when a node's turn comes all its contexts are known. */
static Wide check_proof(const Json *json, uint32_t object, Part *part, int version, int trace)
{
    Proof proof;
    Contexts contexts;
    Graph *graph;
    uint32_t list, root, i, at, *nodes, n = part->side.n, m = part->side.m;
    uint64_t *empty;
    char where[sizeof place];
    Wide bound;
    memset(&proof, 0, sizeof proof);
    memset(&contexts, 0, sizeof contexts);
    sprintf(place, "proofs['%.100s']: ", part->path);
    strcpy(where, place);
    if (kind_of(json, object) != OBJECT)
        refuse("must be an object");
    if (!whole(json, member(json, object, "lower_bound"), &bound))
        refuse("'lower_bound' must be a whole number of bytes");
    list = member(json, object, "nodes");
    if (kind_of(json, list) != LIST)
        refuse("'nodes' must be a list");
    contexts.nodes = json->values[list].length;
    root = (uint32_t)below(json, member(json, object, "root"), contexts.nodes);
    if (root == contexts.nodes)
        refuse("'root' must be the index of a node");
    nodes = make((size_t)contexts.nodes + 1, sizeof *nodes);
    for (i = 0, at = list + 1; i < contexts.nodes; i++, at = json->values[at].end)
        nodes[i] = at;
    contexts.of = make((size_t)contexts.nodes + 1, sizeof *contexts.of);
    contexts.limit = 1024 + 16 * (uint64_t)contexts.nodes;
    proof.json = json;
    proof.side = &part->side;
    proof.version = version;
    proof.region = make((size_t)n + 1, 1);
    proof.marks = make((size_t)n + 1, 1);
    proof.class = make((size_t)m + 1, 1);
    proof.in = make((size_t)3 + n + 2 * (size_t)m, sizeof *proof.in);
    proof.out = make((size_t)3 + n + 2 * (size_t)m, sizeof *proof.out);
    graph = make(1, sizeof *graph);
    graph->side = &part->side;
    graph->number = ++proof.graphs;
    empty = make(words_of(graph->side), sizeof *empty);
    demand(&contexts, root, graph, bound, empty, NO_STATEMENT, rest_of(graph->side, empty));
    for (i = root + 1; i-- > 0;) {
        Context *c;
        int kind = 0;
        uint32_t name;
        if (contexts.of[i] == NULL)
            continue;
        sprintf(place, "%.150snode %lu: ", where, (unsigned long)i);
        contexts.pending -= once(&contexts, i);
        name = kind_of(json, nodes[i]) == OBJECT ? member(json, nodes[i], "kind") : 0;
        if (kind_of(json, name) != TEXT)
            refuse("must be an object with 'kind', a text");
        while (kind < KINDS_COUNT && !is_text(text_of(json, name), KINDS[kind]))
            kind++;
        if (kind == KINDS_COUNT)
            refuse("is of an unknown kind");
        sprintf(place, "%.150snode %lu (%s): ", where, (unsigned long)i, KINDS[kind]);
        while ((c = contexts.of[i]) != NULL) {
            if (++contexts.proved > contexts.limit)
                too_many(&contexts);
            contexts.pending--;
            contexts.of[i] = c->next;
            if (proof.graph != c->graph) {
                drop_dag(proof.dag);
                proof.dag = NULL;
                proof.dag = new_dag(c->graph);
                proof.graph = c->graph;
            }
            proof.bound = c->bound;
            check_node(&proof, &contexts, nodes[i], i, kind, c);
            if (trace)
                trace_node(&proof, c);
            drop(c);
        }
    }
    drop_dag(proof.dag);
    drop(proof.region), drop(proof.marks), drop(proof.class), drop(proof.in), drop(proof.out);
    drop(nodes), drop(empty);
    drop(contexts.of);
    place[0] = 0;
    return bound;
}

/* ---- certificate ------------------------------------------------------------------------------------------------- */

/* Checks the order of a part and returns its peak. */
static Wide check_order(const Json *json, uint32_t list, const Part *part)
{
    const Side *side = &part->side;
    uint32_t i, k, at = list + 1, n = side->n, *left = make((size_t)side->m + 1, sizeof *left);
    unsigned char *run = make((size_t)n + 1, 1), *here = make((size_t)side->m + 1, 1);
    uint64_t resident = 0;
    Wide peak;
    sprintf(place, "orders['%.100s']: ", part->path);
    if (kind_of(json, list) != LIST || json->values[list].length != n)
        refuse("must be a list of all %lu statements", (unsigned long)n);
    for (i = 0; i < side->m; i++) {
        left[i] = side->touchers.start[i + 1] - side->touchers.start[i];
        here[i] = side->entry[i] && (side->pinned[i] || left[i]);
        resident += here[i] ? side->bytes[i] : 0;
    }
    peak = wide(n ? 0 : resident);
    for (i = 0; i < n; i++, at = json->values[at].end) {
        uint32_t v = (uint32_t)below(json, at, n);
        uint64_t saved = 0;
        Wide mem;
        if (v == n || run[v])
            refuse("must list each statement once");
        for (k = side->before.start[v]; k < side->before.start[v + 1]; k++)
            if (!run[side->before.item[k]])
                refuse("runs statement %lu before statement %lu, on which it depends", (unsigned long)v,
                    (unsigned long)side->before.item[k]);
        run[v] = 1;
        for (k = side->touches.start[v]; k < side->touches.start[v + 1]; k++) {
            uint32_t b = side->touches.item[k];
            resident += here[b] ? 0 : side->bytes[b];
            here[b] = 1;
        }
        for (k = side->inputs.start[v]; k < side->inputs.start[v + 1]; k++)
            if (left[side->inputs.item[k]] == 1 && side->saved[k] > saved) /* it dies here */
                saved = side->saved[k];
        mem = add(add(wide(part->own[v]), part->inside[v]), wide(resident - saved));
        if (compare(mem, peak) > 0)
            peak = mem;
        for (k = side->touches.start[v]; k < side->touches.start[v + 1]; k++) {
            uint32_t b = side->touches.item[k];
            if (--left[b] == 0 && !side->pinned[b])
                resident -= side->bytes[b];
        }
    }
    drop(left), drop(run), drop(here);
    place[0] = 0;
    return peak;
}

/* For each part the value that an object holds under its path, 0 if none; refuses other names. */
static uint32_t *by_path(const Json *json, uint32_t object, const Program *program, const char *what)
{
    uint32_t *values = make(program->count, sizeof *values), i, at = object + 1;
    Entry *paths = make(program->count, sizeof *paths);
    if (kind_of(json, object) != OBJECT)
        refuse("'%s' must be an object", what);
    for (i = 0; i < program->count; i++) {
        paths[i].text.bytes = (const unsigned char *)program->parts[i]->path;
        paths[i].text.length = strlen(program->parts[i]->path);
        paths[i].index = i;
    }
    sort_entries(paths, program->count);
    for (i = 0; i < json->values[object].length; i++, at = json->values[at + 1].end) {
        const Entry *entry = find_entry(paths, program->count, text_of(json, at));
        if (entry == NULL)
            refuse("'%s' names what is no body of the program", what);
        values[entry->index] = at + 1;
    }
    drop(paths);
    return values;
}

/* What stands before orders and proofs; returns the version of the certificate. */
static int check_head(const Json *json, const char *digest, int overlays)
{
    static const char *const names[] = {"digest", "frontend", "version"};
    static const char *const schemas[] = {"peakmem.certificate/1", "peakmem.certificate/2"};
    uint32_t value, i;
    int version;
    if (json->values[0].kind != OBJECT)
        refuse("the document must be an object");
    value = member(json, 0, "schema");
    for (version = kind_of(json, value) == TEXT ? 2 : 0; version; version--)
        if (is_text(text_of(json, value), schemas[version - 1]))
            break;
    if (version == 0)
        refuse("'schema' must be 'peakmem.certificate/1' or 'peakmem.certificate/2'");
    if (version == 1 && overlays)
        refuse("'schema' must be 'peakmem.certificate/2' for a program with overlays");
    value = member(json, 0, "program");
    if (kind_of(json, value) != OBJECT)
        refuse("'program' must be an object");
    value = member(json, value, "digest");
    if (kind_of(json, value) != TEXT || !is_text(text_of(json, value), digest))
        refuse("speaks about another program: this program's digest is %s", digest);
    value = member(json, 0, "artifact");
    if (value && kind_of(json, value) != NIL) {
        if (kind_of(json, value) != OBJECT)
            refuse("'artifact' must be an object or null");
        for (i = 0; i < 3; i++)
            if (kind_of(json, member(json, value, names[i])) != TEXT)
                refuse("'artifact' must give '%s' as a text", names[i]);
    }
    return version;
}

static void check_certificate(Program *program, const Json *json, int trace, Wide *bound, Wide *peak)
{
    Sha sha;
    char digest[72];
    uint32_t *orders, *proofs;
    size_t i;
    int version;
    Part *whole_program = program->parts[0];
    Wide given;
    sha_start(&sha);
    put_program(&sha, &program->json, 0, 1);
    sha_end(&sha, digest);
    version = check_head(json, digest, program->overlays);
    orders = by_path(json, member(json, 0, "orders"), program, "orders");
    proofs = by_path(json, member(json, 0, "proofs"), program, "proofs");
    for (i = program->count; i-- > 0;) { /* bodies come after what is around them, so all of them are done first */
        Part *part = program->parts[i];
        uint32_t v;
        for (v = 0; v < part->side.n; v++) /* until now only what the bodies add */
            part->side.workspace[v] = add(part->side.workspace[v], wide(part->own[v]));
        part->peak = check_order(json, orders[i], part);
        part->bound = proofs[i] ? check_proof(json, proofs[i], part, version, trace) : wide(0);
        if (i) {
            Part *outer = program->parts[part->outer];
            if (compare(part->peak, outer->inside[part->at]) > 0)
                outer->inside[part->at] = part->peak;
            if (compare(part->bound, outer->side.workspace[part->at]) > 0)
                outer->side.workspace[part->at] = part->bound;
        }
    }
    if (!whole(json, member(json, 0, "lower_bound"), &given) || compare(given, whole_program->bound))
        refuse("'lower_bound' is not the one that the proof of '' has");
    if (!whole(json, member(json, 0, "peak"), &given) || compare(given, whole_program->peak))
        refuse("'peak' is not the peak of the orders");
    *bound = whole_program->bound;
    *peak = whole_program->peak;
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

/* One pair of files; frees everything. The reason of a failure is in `message`, its place in `place`. */
static int check_files(const char *program_name, const char *certificate_name, int trace, Wide *bound, Wide *peak)
{
    int verdict;
    place[0] = message[0] = 0;
    verdict = setjmp(failure);
    if (verdict == 0) {
        Program program;
        Json json;
        read_program(&program, program_name);
        read_json(&json, certificate_name);
        check_certificate(&program, &json, trace, bound, peak);
    }
    release_all();
    return verdict;
}

/* A line of any length without its end, NULL at the end of the input or without memory; not in the list of blocks. */
static char *read_line(FILE *file)
{
    size_t room = 0, length = 0;
    char *line = NULL;
    int c;
    while ((c = getc(file)) != EOF && c != '\n') {
        if (length + 1 >= room) {
            char *more = realloc(line, room = room ? 2 * room : 256);
            if (more == NULL) {
                free(line);
                return NULL;
            }
            line = more;
        }
        line[length++] = (char)c;
    }
    if (line)
        line[length] = 0;
    else if (c == '\n')
        line = calloc(1, 1);
    return line;
}

static int batch(void)
{
    char *line, a[44], b[44];
    while ((line = read_line(stdin)) != NULL) {
        Wide bound = {0, 0}, peak = {0, 0};
        char *tab = strchr(line, '\t');
        int verdict = BAD;
        if (tab) {
            *tab = 0;
            verdict = check_files(line, tab + 1, 0, &bound, &peak);
        }
        if (verdict == ACCEPTED)
            printf("accepted %s %s\n", decimal(bound, a), decimal(peak, b));
        else
            puts(verdict == REFUSED ? "refused" : "bad input");
        fflush(stdout);
        free(line);
    }
    return 0;
}

static int usage(void)
{
    fputs("usage: peakmem_check PROGRAM CERTIFICATE [--require-optimal] [--trace]\n"
          "       peakmem_check --batch    (lines PROGRAM<TAB>CERTIFICATE on the standard input)\n", stderr);
    return BAD;
}

int main(int count, char **arguments)
{
    const char *names[2] = {NULL, NULL};
    int i, files = 0, require_optimal = 0, trace = 0, verdict, optimal;
    Wide bound = {0, 0}, peak = {0, 0};
    char a[44], b[44];
    if (count == 2 && strcmp(arguments[1], "--batch") == 0)
        return batch();
    for (i = 1; i < count; i++)
        if (strcmp(arguments[i], "--require-optimal") == 0)
            require_optimal = 1;
        else if (strcmp(arguments[i], "--trace") == 0)
            trace = 1;
        else if (strncmp(arguments[i], "--", 2) == 0 || files == 2)
            return usage();
        else
            names[files++] = arguments[i];
    if (files != 2)
        return usage();
    verdict = check_files(names[0], names[1], trace, &bound, &peak);
    if (verdict != ACCEPTED) {
        fflush(stdout);
        fprintf(stderr, "peakmem_check: %s%s%s\n", verdict == REFUSED ? "certificate: " : "", verdict == REFUSED ? place : "", message);
        return verdict;
    }
    optimal = compare(bound, peak) == 0;
    printf("valid: no order of this program has a live_peak below %s B; its orders reach %s B%s\n", decimal(bound, a),
        decimal(peak, b), optimal ? " and are optimal" : "");
    return require_optimal && !optimal ? NOT_OPTIMAL : ACCEPTED;
}
