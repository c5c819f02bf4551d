//! The media type that a client prefers, by its header `Accept`.

use axum::http::{HeaderMap, header};

/// Returns whether the client prefers an HTML page to JSON, as browsers do.
pub(crate) fn wants_page(headers: &HeaderMap) -> bool {
    prefers_to_json(headers, "text/html")
}

/// Returns whether the header `Accept` names a media type, with a higher weight than JSON.
pub(crate) fn prefers_to_json(headers: &HeaderMap, media_type: &str) -> bool {
    let weight = |media_type: &str| {
        let lines = headers.get_all(header::ACCEPT).iter();
        let ranges = lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','));
        ranges
            .filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let kind = parts.next().unwrap_or_default();
                let quality = parts.find_map(|part| part.strip_prefix("q="));
                let quality = quality.map_or(Some(1.0), |text| text.parse::<f32>().ok())?;
                kind.eq_ignore_ascii_case(media_type).then_some(quality)
            })
            .fold(0.0, f32::max)
    };
    let json = weight("application/json").max(weight("application/problem+json"));
    weight(media_type) > json
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn browsers_prefer_pages() {
        let wants = |accept: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in accept {
                headers.append(header::ACCEPT, HeaderValue::from_static(line));
            }
            wants_page(&headers)
        };
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        assert!(wants(&[browser]));
        assert!(wants(&["application/json;q=0.5, Text/HTML; q=0.6"]));
        assert!(wants(&["application/json;q=0.5", "text/html"]));
        for json in [
            &[][..],
            &["*/*"],
            &["application/json"],
            &["application/json, text/html"],
            &["text/html;q=0"],
            &["text/html;q=much"],
            &["text/html;q=0.8, application/problem+json"],
        ] {
            assert!(!wants(json), "{json:?}");
        }
    }
}
