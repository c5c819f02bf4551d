import com.marcnuri.helm.Helm;
import java.nio.file.Files;
import java.nio.file.Path;

/** Lints a chart and renders it for each values file, with the file's name as release name: {@code Render CHART FOLDER VALUES…}. */
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
