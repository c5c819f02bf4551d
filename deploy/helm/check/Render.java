import com.marcnuri.helm.Helm;
import java.nio.file.Files;
import java.nio.file.Path;

/** Lints a chart and writes what it makes of each file of values, by a release of the file's name: {@code Render CHART INTO VALUES…}. */
public class Render {
    public static void main(String[] arguments) throws Exception {
        Path chart = Path.of(arguments[0]);
        var linted = new Helm(chart).lint().strict().call();
        if (linted.isFailed()) {
            linted.getMessages().forEach(System.err::println);
            System.exit(1);
        }
        for (int at = 2; at < arguments.length; at++) {
            Path values = Path.of(arguments[at]);
            String file = values.getFileName().toString();
            String made = new Helm(chart).template()
                .withName(file.replace(".yaml", ""))
                .withNamespace("analytics")
                .withValuesFile(values)
                .call();
            Files.writeString(Path.of(arguments[1]).resolve(file), made);
        }
    }
}
