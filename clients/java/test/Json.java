import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Enough JSON for the lines of the conformance program: the JDK has none. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> object(String text) {
        return (Map<String, Object>) new Json(text).value();
    }

    static String write(Object value) {
        if (value instanceof Map<?, ?> map) {
            List<String> entries = new ArrayList<>();
            map.forEach((name, one) -> entries.add(write(name) + ":" + write(one)));
            return "{" + String.join(",", entries) + "}";
        }
        return value == null || value instanceof Number || value instanceof Boolean
            ? String.valueOf(value) : quoted(value.toString());
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        text.chars().forEach(one -> quoted.append(
            one < ' ' || one > '~' || one == '"' || one == '\\' ? String.format("\\u%04x", one) : String.valueOf((char) one)));
        return quoted.append('"').toString();
    }

    private char next() {
        while (Character.isWhitespace(text.charAt(at))) {
            at++;
        }
        return text.charAt(at);
    }

    private Object value() {
        return switch (next()) {
            case '{' -> map();
            case '[' -> list();
            case '"' -> string();
            default -> word();
        };
    }

    private Map<String, Object> map() {
        Map<String, Object> map = new LinkedHashMap<>();
        at++;
        while (next() != '}') {
            String name = string();
            next();
            at++; // the colon
            map.put(name, value());
            at += next() == ',' ? 1 : 0;
        }
        at++;
        return map;
    }

    private List<Object> list() {
        List<Object> list = new ArrayList<>();
        at++;
        while (next() != ']') {
            list.add(value());
            at += next() == ',' ? 1 : 0;
        }
        at++;
        return list;
    }

    private String string() {
        next();
        StringBuilder string = new StringBuilder();
        for (at++; text.charAt(at) != '"'; at++) {
            string.append(text.charAt(at) == '\\' ? escaped() : text.charAt(at));
        }
        at++;
        return string.toString();
    }

    private char escaped() {
        char one = text.charAt(++at);
        if (one == 'u') {
            at += 4;
            return (char) Integer.parseInt(text.substring(at - 3, at + 1), 16);
        }
        int known = "nrtbf".indexOf(one);
        return known < 0 ? one : "\n\r\t\b\f".charAt(known);
    }

    private Object word() {
        int start = at;
        while (at < text.length() && ",]} ".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(start, at);
        return switch (word) {
            case "true", "false" -> Boolean.valueOf(word);
            case "null" -> null;
            default -> Double.valueOf(word);
        };
    }
}
